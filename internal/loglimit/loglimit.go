// Package loglimit limits repeated log messages.
package loglimit

import "time"

// maxKeys bounds the memory of a limiter. At the limit, expired keys are dropped; without expired keys, all keys.
const maxKeys = 1024

// Limiter allows a message per key and interval. A Limiter is not safe for concurrent use.
type Limiter[K comparable] struct {
	interval time.Duration
	last     map[K]time.Time // when a message of the key was last allowed
}

// New returns a limiter.
func New[K comparable](interval time.Duration) *Limiter[K] {
	return &Limiter[K]{interval: interval, last: map[K]time.Time{}}
}

// Allow reports whether to log a message of key at now, and counts the message as logged if so.
func (l *Limiter[K]) Allow(key K, now time.Time) bool {
	if last, ok := l.last[key]; ok && now.Sub(last) < l.interval {
		return false
	}
	if len(l.last) >= maxKeys {
		l.drop(now)
	}
	l.last[key] = now
	return true
}

func (l *Limiter[K]) drop(now time.Time) {
	for key, last := range l.last {
		if now.Sub(last) >= l.interval {
			delete(l.last, key)
		}
	}
	if len(l.last) >= maxKeys {
		clear(l.last)
	}
}

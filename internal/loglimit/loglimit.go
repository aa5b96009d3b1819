// Package loglimit limits repeated log messages.
package loglimit

import (
	"sync"
	"time"
)

// maxKeys bounds the memory of a limiter. At the limit, all keys are dropped.
const maxKeys = 1024

// Limiter allows a message per key and interval.
type Limiter[K comparable] struct {
	interval time.Duration
	mu       sync.Mutex
	last     map[K]time.Time // when a message of the key was last allowed; guarded by mu
}

// New returns a limiter.
func New[K comparable](interval time.Duration) *Limiter[K] {
	return &Limiter[K]{interval: interval, last: map[K]time.Time{}}
}

// Allow reports whether to log a message of key at now, and counts the message
// as logged if so.
func (l *Limiter[K]) Allow(key K, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if last, ok := l.last[key]; ok && now.Sub(last) < l.interval {
		return false
	}
	if len(l.last) >= maxKeys {
		clear(l.last)
	}
	l.last[key] = now
	return true
}

package loglimit

import (
	"testing"
	"time"
)

func TestAllow(t *testing.T) {
	begin := time.Unix(0, 0)
	l := New[string](time.Minute)
	for _, c := range []struct {
		key  string
		at   time.Duration
		want bool
	}{
		{"a", 0, true},
		{"a", 59 * time.Second, false},
		{"b", 59 * time.Second, true},
		{"a", time.Minute, true},
		{"b", time.Minute, false},
	} {
		if got := l.Allow(c.key, begin.Add(c.at)); got != c.want {
			t.Errorf("Allow(%s) after %s: got %v, want %v", c.key, c.at, got, c.want)
		}
	}
}

func TestKeysAreBounded(t *testing.T) {
	begin := time.Unix(0, 0)
	l := New[int](time.Minute)
	for i := range 10 * maxKeys {
		l.Allow(i, begin)
	}
	if len(l.last) > maxKeys {
		t.Errorf("got %d keys in one interval, want at most %d", len(l.last), maxKeys)
	}
}

package pubsub

import (
	"sync"
	"testing"
)

func TestGetReturnsTheNewestValue(t *testing.T) {
	var v Value[int]
	if got, _ := v.Get(); got != 0 {
		t.Fatalf("value before the first Set: got %d, want 0", got)
	}
	v.Set(1)
	v.Set(2)
	if got, _ := v.Get(); got != 2 {
		t.Fatalf("value: got %d, want 2", got)
	}
}

func TestSetWakesAllReaders(t *testing.T) {
	var v Value[int]
	_, first := v.Get()
	_, second := v.Get()
	select {
	case <-first:
		t.Fatal("a reader was notified before Set")
	default:
	}
	v.Set(1)
	<-first
	<-second
	_, third := v.Get()
	select {
	case <-third:
		t.Fatal("Get after Set returned a closed channel")
	default:
	}
}

// TestNoChangeIsLost checks that each reader gets the last value, even if the writer is faster.
func TestNoChangeIsLost(t *testing.T) {
	const last = 1000
	var v Value[int]
	var readers sync.WaitGroup
	for range 4 {
		readers.Go(func() {
			for {
				got, changed := v.Get()
				if got == last {
					return
				}
				<-changed
			}
		})
	}
	for i := 1; i <= last; i++ {
		v.Set(i)
	}
	readers.Wait()
}

// TestUpdate checks that concurrent updates are all applied, and wake readers.
func TestUpdate(t *testing.T) {
	var v Value[int]
	_, changed := v.Get()
	var writers sync.WaitGroup
	for range 4 {
		writers.Go(func() {
			for range 100 {
				v.Update(func(n int) int { return n + 1 })
			}
		})
	}
	writers.Wait()
	<-changed
	if got, _ := v.Get(); got != 400 {
		t.Errorf("value: got %d, want 400", got)
	}
}

func TestReplaceWakesNoReader(t *testing.T) {
	var v Value[int]
	_, changed := v.Get()
	v.Replace(1)
	select {
	case <-changed:
		t.Fatal("Replace notified a reader")
	default:
	}
	if got, _ := v.Get(); got != 1 {
		t.Fatalf("value: got %d, want 1", got)
	}
	v.Set(2)
	<-changed
}

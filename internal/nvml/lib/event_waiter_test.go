package lib

import (
	"os"
	"testing"
	"time"
)

// TestEventWaiterEnds checks that the thread ends after Close and closes its end of the socket.
func TestEventWaiterEnds(t *testing.T) {
	openFiles := func() int {
		files, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(files)
	}
	limit := openFiles() + 10 // Go's poller opens a few
	for range 50 {
		w, err := NewEventWaiter()
		if err != nil {
			t.Fatal(err)
		}
		w.Close()
	}
	for deadline := time.Now().Add(10 * time.Second); openFiles() > limit; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("got %d open files, want at most %d", openFiles(), limit)
		}
	}
}

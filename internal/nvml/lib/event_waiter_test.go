package lib

import (
	"os"
	"testing"
	"time"
)

// TestEventWaiterEnds: after Close the thread ends, and closes its end of the socket.
func TestEventWaiterEnds(t *testing.T) {
	openFiles := func() int {
		files, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(files)
	}
	first, err := NewEventWaiter() // opens the poller's files
	if err != nil {
		t.Fatal(err)
	}
	first.Close()
	time.Sleep(100 * time.Millisecond)
	before := openFiles()
	for range 50 {
		w, err := NewEventWaiter()
		if err != nil {
			t.Fatal(err)
		}
		w.Close()
	}
	for deadline := time.Now().Add(10 * time.Second); openFiles() > before; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d open files, want at most %d", openFiles(), before)
		}
	}
}

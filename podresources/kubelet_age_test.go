package podresources

import (
	"net"
	"os"
	"testing"
	"time"
)

// TestKubeletAgeAfterClockJump has a socket from twenty hours ago and a young process.
func TestKubeletAgeAfterClockJump(t *testing.T) {
	before := time.Now()
	socket := startKubeletProcess(t, 1)
	then := time.Now().Add(-20 * time.Hour)
	if err := os.Chtimes(socket, then, then); err != nil {
		t.Fatal(err)
	}
	conn, err := newDialer(socket)(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	over, ok := conn.LocalAddr().(kubeletEpoch)
	if tick := time.Second / 100; !ok || over.kubeletStartedAt.Before(before.Add(-tick)) || over.kubeletStartedAt.After(time.Now()) {
		t.Errorf("the kubelet started %s ago, want at most %s", time.Since(over.kubeletStartedAt), time.Since(before))
	}
}

// TestKubeletAgeWithoutSocketFile takes a kubelet of unknown age for young.
func TestKubeletAgeWithoutSocketFile(t *testing.T) {
	if age := kubeletAge(&net.UnixConn{}, t.TempDir()+"/none"); age != 0 {
		t.Errorf("age: %s, want 0", age)
	}
}

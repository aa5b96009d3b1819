package podresources

import (
	"net"
	"os"
	"testing"
	"time"
)

// TestKubeletAgeAfterClockJump covers a socket from twenty hours ago and a young process.
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
	epoch, ok := conn.LocalAddr().(kubeletEpoch)
	if tick := time.Second / 100; !ok || epoch.kubeletStartedAt.Before(before.Add(-tick)) || epoch.kubeletStartedAt.After(time.Now()) {
		t.Errorf("start of the kubelet: got %s ago, want at most %s", time.Since(epoch.kubeletStartedAt), time.Since(before))
	}
}

// TestKubeletAgeWithoutSocketFile checks that a kubelet of unknown age counts as young.
func TestKubeletAgeWithoutSocketFile(t *testing.T) {
	if age := kubeletAge(&net.UnixConn{}, t.TempDir()+"/none"); age != 0 {
		t.Errorf("age: got %s, want 0", age)
	}
}

package node

import (
	"cmp"
	"context"
	"testing"
	"time"
)

// ForTest starts a node and stops it at the end of the test. The logs of a
// failed test are kept, and their folder is logged. Subtests may share the
// node. ctx limits the start only.
func ForTest(ctx context.Context, t testing.TB, o Options) *RealNode {
	t.Helper()
	o.LogName = cmp.Or(o.LogName, t.Name())
	o.Logf = t.Logf
	begin := time.Now()
	n, err := Up(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("node up after %s", time.Since(begin).Round(time.Millisecond))
	t.Cleanup(func() {
		begin := time.Now()
		if err := n.Down(context.Background()); err != nil {
			t.Error(err)
		}
		t.Logf("node down after %s", time.Since(begin).Round(time.Millisecond))
		if t.Failed() {
			t.Logf("the node's logs are in %s", n.Logs)
		} else if err := n.RemoveLogs(); err != nil {
			t.Error(err)
		}
	})
	return n
}

package main

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"testing"
)

func TestRun(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new")
	for _, c := range []struct {
		args []string
		want int
	}{
		{nil, 2},
		{[]string{"-o"}, 2},
		{[]string{"-o", dir, "stray"}, 2},
		{[]string{"-o", dir, "-hide", "nvmlNothing"}, 1},
		{[]string{"-o", dir, "-hide", "nvmlInit,nvmlGpmMetricsGet"}, 0},
	} {
		var stdout, stderr bytes.Buffer
		if got := runMain(c.args, &stdout, &stderr); got != c.want {
			t.Errorf("%q: exit status %d, want %d\n%s", c.args, got, c.want, &stderr)
		}
		if printed := stdout.Len() > 0; printed != (c.want == 0) {
			t.Errorf("%q: output %q", c.args, &stdout)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "libnvidia-ml.so.1")); err != nil {
		t.Error(err)
	}
	t.Setenv("CC", "false --for=arm64")
	if got := runMain([]string{"-o", dir}, io.Discard, io.Discard); got != 1 {
		t.Errorf("exit status %d with a compiler that fails, want 1", got)
	}
}

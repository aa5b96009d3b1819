package client

import (
	"fmt"
	"io"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/podgauge/podgauge/test/helpers/expect"
	"github.com/podgauge/podgauge/test/helpers/require"
)

// TestFlagValue checks the forms of a daemon's flag. The daemon is found in /proc, which a test cannot replace.
func TestFlagValue(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{nil, ""},
		{[]string{"--state-dir=/a", "--x"}, "/a"},
		{[]string{"-state-dir", "/a"}, "/a"},
		{[]string{"--state-dir=/a", "--state-dir=/b"}, "/b"},
		{[]string{"--state-dir"}, ""},
		{[]string{"state-dir=/a"}, ""},
		{[]string{"--state-dirs=/a"}, ""},
	} {
		expect.Equal(t, flagValue(c.args, "state-dir"), c.want, c.args)
	}
}

// TestTerminal checks that terminals are distinguished from other files.
func TestTerminal(t *testing.T) {
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	require.NoError(t, err)
	defer master.Close()
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0)
	}
	require.NoError(t, err)
	slave, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	require.NoError(t, err)
	defer slave.Close()
	null, err := os.Open(os.DevNull)
	require.NoError(t, err)
	defer null.Close()
	if !IsTerminal(slave) || IsTerminal(null) || IsTerminal(io.Discard) {
		t.Error("want only the first to be a terminal")
	}
}

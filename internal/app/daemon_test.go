package app

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// fakeProcess is a process in a fake /proc.
type fakeProcess struct {
	name, exe, mountNS string
	argv               []string
}

func newFakeProc(t *testing.T, processes ...fakeProcess) string {
	t.Helper()
	dir := t.TempDir()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, exe := range []string{"podgauge", "other"} {
		must(os.WriteFile(filepath.Join(dir, exe), nil, 0o600))
	}
	for _, p := range processes {
		processDir := filepath.Join(dir, "proc", p.name)
		must(os.MkdirAll(filepath.Join(processDir, "ns"), 0o755))
		must(os.Symlink(filepath.Join(dir, p.exe), filepath.Join(processDir, "exe")))
		must(os.Symlink(p.mountNS, filepath.Join(processDir, "ns/mnt")))
		must(os.WriteFile(filepath.Join(processDir, "cmdline"), []byte(strings.Join(p.argv, "\x00")+"\x00"), 0o600))
	}
	return filepath.Join(dir, "proc")
}

func TestDoctorUsesDaemonFlags(t *testing.T) {
	doctor := []string{"podgauge", "doctor", "--state-dir=/mine"}
	self, doctorProc := fakeProcess{"self", "podgauge", "mnt:[1]", doctor}, fakeProcess{"7", "podgauge", "mnt:[1]", doctor}
	daemonProc := fakeProcess{"1", "podgauge", "mnt:[1]", []string{"/usr/bin/podgauge", "--state-dir=/state", "--kubelet-dir", "/k"}}
	for name, c := range map[string]struct {
		processes []fakeProcess
		args      []string
		want      []string
		note      string
	}{
		"beside it": {
			processes: []fakeProcess{self, doctorProc, daemonProc}, args: doctor[1:],
			want: []string{"doctor", "--state-dir=/state", "--kubelet-dir", "/k", "--state-dir=/mine"},
			note: "with the flags of the daemon: --state-dir=/state --kubelet-dir /k",
		},
		"alone": {processes: []fakeProcess{self, doctorProc}, args: doctor[1:], want: doctor[1:]},
		"another container's": {
			processes: []fakeProcess{self, doctorProc, {"1", "podgauge", "mnt:[2]", daemonProc.argv}}, args: doctor[1:], want: doctor[1:],
		},
		"another program": {
			processes: []fakeProcess{self, doctorProc, {"1", "other", "mnt:[1]", daemonProc.argv}}, args: doctor[1:], want: doctor[1:],
		},
		"beside a client command": {
			processes: []fakeProcess{self, doctorProc, daemonProc, {"2", "podgauge", "mnt:[1]", []string{"podgauge", "status"}}}, args: doctor[1:],
			want: []string{"doctor", "--state-dir=/state", "--kubelet-dir", "/k", "--state-dir=/mine"},
			note: "with the flags of the daemon: --state-dir=/state --kubelet-dir /k",
		},
		"without flags": {
			processes: []fakeProcess{self, doctorProc, {"1", "podgauge", "mnt:[1]", []string{"podgauge"}}}, args: doctor[1:], want: doctor[1:],
		},
		"another command": {processes: []fakeProcess{self, doctorProc, daemonProc}, args: []string{"validate", "f"}, want: []string{"validate", "f"}},
		"no /proc":        {args: doctor[1:], want: doctor[1:]},
	} {
		t.Run(name, func(t *testing.T) {
			got, note := withDaemonFlags(newFakeProc(t, c.processes...), c.args)
			if !slices.Equal(got, c.want) || note != c.note {
				t.Errorf("got %q, %q, want %q, %q", got, note, c.want, c.note)
			}
		})
	}
}

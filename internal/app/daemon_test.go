package app

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// process is one below a made-up /proc.
type process struct {
	name, exe, mounts string
	words             []string
}

func procOf(t *testing.T, processes ...process) string {
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
		folder := filepath.Join(dir, "proc", p.name)
		must(os.MkdirAll(filepath.Join(folder, "ns"), 0o755))
		must(os.Symlink(filepath.Join(dir, p.exe), filepath.Join(folder, "exe")))
		must(os.Symlink(p.mounts, filepath.Join(folder, "ns/mnt")))
		must(os.WriteFile(filepath.Join(folder, "cmdline"), []byte(strings.Join(p.words, "\x00")+"\x00"), 0o600))
	}
	return filepath.Join(dir, "proc")
}

func TestDoctorTakesTheDaemonsFlags(t *testing.T) {
	doctor := []string{"podgauge", "doctor", "--state-dir=/mine"}
	self, itself := process{"self", "podgauge", "mnt:[1]", doctor}, process{"7", "podgauge", "mnt:[1]", doctor}
	serving := process{"1", "podgauge", "mnt:[1]", []string{"/usr/bin/podgauge", "--state-dir=/state", "--kubelet-dir", "/k"}}
	for name, c := range map[string]struct {
		processes []process
		args      []string
		want      []string
		says      string
	}{
		"beside it": {
			processes: []process{self, itself, serving}, args: doctor[1:],
			want: []string{"doctor", "--state-dir=/state", "--kubelet-dir", "/k", "--state-dir=/mine"},
			says: "with the flags of process 1: --state-dir=/state --kubelet-dir /k",
		},
		"alone": {processes: []process{self, itself}, args: doctor[1:], want: doctor[1:]},
		"another container's": {
			processes: []process{self, itself, {"1", "podgauge", "mnt:[2]", serving.words}}, args: doctor[1:], want: doctor[1:],
		},
		"another program": {
			processes: []process{self, itself, {"1", "other", "mnt:[1]", serving.words}}, args: doctor[1:], want: doctor[1:],
		},
		"two of them": {
			processes: []process{self, itself, serving, {"2", "podgauge", "mnt:[1]", serving.words}}, args: doctor[1:], want: doctor[1:],
		},
		"beside one that only asks": {
			processes: []process{self, itself, serving, {"2", "podgauge", "mnt:[1]", []string{"podgauge", "status"}}}, args: doctor[1:],
			want: []string{"doctor", "--state-dir=/state", "--kubelet-dir", "/k", "--state-dir=/mine"},
			says: "with the flags of process 1: --state-dir=/state --kubelet-dir /k",
		},
		"without flags": {
			processes: []process{self, itself, {"1", "podgauge", "mnt:[1]", []string{"podgauge"}}}, args: doctor[1:], want: doctor[1:],
		},
		"another command": {processes: []process{self, itself, serving}, args: []string{"validate", "f"}, want: []string{"validate", "f"}},
		"no /proc":        {args: doctor[1:], want: doctor[1:]},
	} {
		t.Run(name, func(t *testing.T) {
			got, says := asDaemon(procOf(t, c.processes...), c.args)
			if !slices.Equal(got, c.want) || says != c.says {
				t.Errorf("got %q, %q; want %q, %q", got, says, c.want, c.says)
			}
		})
	}
}

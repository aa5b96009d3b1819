package hpcjobs_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/hpcjobs"
	"github.com/podgauge/podgauge/internal/pubsub"
	"github.com/podgauge/podgauge/test/bubble"
	"github.com/podgauge/podgauge/test/helpers/background"
	"github.com/podgauge/podgauge/test/helpers/expect"
	"github.com/podgauge/podgauge/test/helpers/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func write(t testing.TB, folder, name, content string) {
	t.Helper()
	require.NoError(t, os.WriteFile(filepath.Join(folder, name), []byte(content), 0o600))
}

// TestRead reads files as dcgm-exporter does, and files that no prolog writes.
func TestRead(t *testing.T) {
	const (
		gpu = "GPU-3b5c6c1e-0f6d-4c6a-9d4e-8a1f2b3c4d50"
		mig = "MIG-6f1d7f52-5b0e-5f0c-8c39-5d1c0e8f7a20"
	)
	folder := t.TempDir()
	for name, content := range map[string]string{
		"0": "1234", "1": "34\n12\r\n\n34", "2": "", "3": "0\n", "2.7": "56\n", gpu: "78\n12\n", mig: "90\n",
		"4": strings.Repeat("9\n", 33), "5": strings.Repeat("9", 129), "6": "1\x1b[2J\n", "7": "\xff", "8": strings.Repeat("\n", 5000),
		"0.tmp": "11", ".0": "12", "GPU-../x": "", "00000": "13",
	} {
		if !strings.Contains(name, "/") {
			write(t, folder, name, content)
		}
	}
	require.NoError(t, os.Symlink("0", filepath.Join(folder, "10")))
	require.NoError(t, os.Mkdir(filepath.Join(folder, "11"), 0o700))
	require.NoError(t, syscall.Mkfifo(filepath.Join(folder, "12"), 0o600))
	m, err := hpcjobs.Read(folder)
	want := hpcjobs.Mapping{"0": {"1234"}, "1": {"34", "12", "34"}, "2.7": {"56"}, gpu: {"78", "12"}, mig: {"90"}}
	expect.DeepEqual(t, m, want)
	for _, bad := range []string{"4: more than 32 jobs", "5: expected ids", "6: expected ids", "7: expected ids", "8: more than 4096 bytes", "10: too many levels", "12: not a regular file"} {
		expect.Error(t, err, "/"+bad, "errors")
	}
	whole := device.Device{ID: gpu, GPU: gpu, Index: 1, MIGDeviceIndex: -1}
	part := device.Device{ID: mig, GPU: gpu, Index: 2, MIGDeviceIndex: 0, GI: 7}
	none := device.Device{ID: "MIG-x", GPU: gpu, Index: 1, MIGDeviceIndex: 1, GI: 2}
	for d, want := range map[*device.Device]string{&whole: "[12 34 78]", &part: "[56 90]", &none: "[]"} {
		expect.Equal(t, fmt.Sprint(m.Of(*d)), want, "jobs of", d.ID)
	}
}

// TestFollow checks that a change is published within seconds, also of a folder
// that appears later, and that a bad file costs one line in the log.
func TestFollow(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "jobs")
	bubble.Test(t, func(t *testing.T) {
		var published pubsub.Value[hpcjobs.Mapping]
		var log bytes.Buffer
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			read := func() (hpcjobs.Mapping, error) { return hpcjobs.Read(folder) }
			hpcjobs.Follow(ctx, read, &published, slog.New(slog.NewTextHandler(&log, nil)))
		}()
		jobs := func() string {
			time.Sleep(10 * time.Second)
			synctest.Wait()
			m, _ := published.Get()
			return fmt.Sprint(map[string][]string(m))
		}
		expect.Equal(t, jobs(), "map[]", "without the folder")
		require.NoError(t, os.Mkdir(folder, 0o700))
		write(t, folder, "0", "1")
		write(t, folder, "1", strings.Repeat("x", 5000))
		expect.Equal(t, jobs(), "map[0:[1]]")
		write(t, folder, "0", "2")
		require.NoError(t, os.Remove(filepath.Join(folder, "1")))
		expect.Equal(t, jobs(), "map[0:[2]]", "the next job")
		cancel()
		<-ended
		if got := strings.Count(log.String(), "\n"); got != 2 {
			t.Errorf("log: got %s, want a line without the folder, and one for the file", log.String())
		}
	})
}

// TestFollowHungFolder checks that jobs are unknown while a read hangs, and that the end does not wait for it.
func TestFollowHungFolder(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var published pubsub.Value[hpcjobs.Mapping]
		var reads atomic.Int32
		proceed := make(chan struct{})
		defer close(proceed)
		read := func() (hpcjobs.Mapping, error) {
			if reads.Add(1) > 1 {
				<-proceed
			}
			return hpcjobs.Mapping{"0": {"1"}}, nil
		}
		want := func(jobs, readCount int) {
			t.Helper()
			synctest.Wait()
			if m, _ := published.Get(); len(m) != jobs || int(reads.Load()) != readCount {
				t.Errorf("got jobs %v after %d reads, want %d after %d", m, reads.Load(), jobs, readCount)
			}
		}
		stop := background.Run(t, func(ctx context.Context) error {
			hpcjobs.Follow(ctx, read, &published, slog.New(slog.DiscardHandler))
			return nil
		})
		time.Sleep(10 * time.Second)
		want(1, 2)
		time.Sleep(time.Minute)
		want(0, 2)
		proceed <- struct{}{}
		want(1, 2)
		time.Sleep(5 * time.Second)
		want(1, 3)
		stop()
	})
}

// FuzzRead checks that ids of any file are within the limits.
func FuzzRead(f *testing.F) {
	f.Add([]byte("1\n2\n"))
	f.Add([]byte("\xff\n\x00"))
	folder := f.TempDir()
	f.Fuzz(func(t *testing.T, content []byte) {
		write(t, folder, "0", string(content))
		m, err := hpcjobs.Read(folder)
		if err != nil && m["0"] != nil || len(m["0"]) > 32 {
			t.Fatalf("got %q, %v", m, err)
		}
		for _, id := range m["0"] {
			if id == "" || len(id) > 128 || strings.ContainsAny(id, "\n\r\x00\"\ufffd") && !strings.Contains(id, `"`) {
				t.Fatalf("id %q", id)
			}
		}
	})
}

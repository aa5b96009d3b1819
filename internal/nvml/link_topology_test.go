package nvml

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	nvmltest "github.com/podgauge/podgauge/test/nvml"
)

// linkMatrix formats the links as rows: "0: - 18n 18s", the number of NVLinks
// and a letter for the path. A GPU that is missing as A has no row.
func (s *backendFixture) linkMatrix() (rows []string, err error) {
	s.Helper()
	links, err := s.Links(context.Background())
	t := s.inventory.Load()
	for i, a := range t.gpus {
		row := fmt.Sprintf("%d:", i)
		found := false
		for _, b := range t.gpus {
			at := slices.IndexFunc(links, func(l device.Link) bool { return l.A == a.ID && l.B == b.ID })
			if at < 0 {
				row += " -"
				continue
			}
			found = true
			row += fmt.Sprintf(" %d%c", links[at].NVLinks, "?bpxhns"[links[at].Path])
		}
		if found {
			rows = append(rows, row)
		}
	}
	return rows, err
}

func TestLinks(t *testing.T) {
	none := "gpu * link 0-17 none"
	for _, c := range []struct {
		what  string
		lines []string
		want  []string
	}{
		{
			"all NVLinks through switches",
			[]string{"gpus 3", "ancestor 0 2 system"},
			[]string{"0: - 18n 18s", "1: 18n - 18n", "2: 18s 18n -"},
		},
		{
			"links of one GPU are down",
			[]string{"gpus 2", "gpu 1 link 3-6 off"},
			[]string{"0: - 18n", "1: 14n -"},
		},
		{
			"pairs, one lane down at one end",
			[]string{
				"gpus 4", none, "gpu 0 link 0-3 gpu 1", "gpu 1 link 0-3 gpu 0", "gpu 1 link 2 off",
				"gpu 2 link 0-3 gpu 3", "gpu 3 link 0-3 gpu 2",
				"ancestor 0 1 single", "ancestor 2 3 internal", "ancestor 0 2 multiple", "ancestor 0 3 hostbridge",
			},
			[]string{"0: - 4p 0x 0h", "1: 3p - 0n 0n", "2: 0x 0n - 4b", "3: 0h 0n 4b -"},
		},
		{
			"PCIe only",
			[]string{"gpus 2", none},
			[]string{"0: - 0n", "1: 0n -"},
		},
		{
			"link to an absent GPU",
			[]string{"gpus 2", none, "gpu 0 link 0-3 gpu 7", "gpu 1 link 0 off"},
			[]string{"0: - 0n", "1: 0n -"},
		},
		{
			"switches out of reach of one GPU",
			[]string{"gpus 3", "gpu 2 link 0-17 none", "gpu 2 link 0-1 off"},
			[]string{"0: - 18n 0n", "1: 18n - 0n", "2: 0n 0n -"},
		},
		{
			"unknown level, and pairs without a level",
			[]string{"gpus 2", none, "fail nvmlDeviceGetTopologyCommonAncestor gpu * NOT_SUPPORTED"},
			[]string{"0: - 0?", "1: 0? -"},
		},
		{
			"a GPU alone",
			[]string{"gpus 1"},
			nil,
		},
	} {
		s := newListedFixture(t, c.lines...)
		got, err := s.linkMatrix()
		if err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%s: got %q, %v\nwant %q", c.what, got, err, c.want)
		}
	}
}

// TestLinksWithFaults has GPUs that fail. The links of the other GPUs are
// complete, and the error has the names of the failed GPUs.
func TestLinksWithFaults(t *testing.T) {
	for _, c := range []struct {
		line, want string
		rows       []string
		calls      uint64 // on GPU 1
	}{
		{"gpu 1 lost", "GPU-1: NVLink 0: GPU_IS_LOST", []string{"0: - 0? 18n", "2: 18n 0? -"}, 1},
		{
			"fail nvmlDeviceGetNvLinkState gpu 1 RESET_REQUIRED", "GPU-1: NVLink 0: RESET_REQUIRED",
			[]string{"0: - 0? 18n", "2: 18n 0? -"},
			1,
		},
		{
			"fail nvmlDeviceGetNvLinkRemoteDeviceType gpu 1 UNKNOWN", "GPU-1: NVLink 17: UNKNOWN",
			[]string{"0: - 0n 18n", "1: 0n - 0n", "2: 18n 0n -"},
			38,
		},
		{
			"fail nvmlDeviceGetTopologyCommonAncestor gpu 1 UNKNOWN", "GPU-1: path to GPU-0",
			[]string{"0: - 18? 18n", "1: 18? - 18n", "2: 18n 18n -"},
			38,
		},
	} {
		s := newListedFixture(t, "gpus 3", "gpu 1 uuid GPU-1", "gpu 2 uuid GPU-2")
		s.set(c.line)
		before := s.calls()
		got, err := s.linkMatrix()
		if err == nil || !strings.Contains(err.Error(), c.want) || !slices.Equal(got, c.rows) {
			t.Errorf("%s: got %q, %v\nwant %q, %s", c.line, got, err, c.rows, c.want)
		}
		if n := s.calls().Since(before).GPUTotal(1); n != c.calls {
			t.Errorf("%s: calls on the GPU: got %d, want %d", c.line, n, c.calls)
		}
	}
}

// TestLinksWithStalledGPU has a hanging call. The GPU gets no other call after
// a short wait.
func TestLinksWithStalledGPU(t *testing.T) {
	s := newListedFixture(t, "gpus 3", "gpu 1 uuid GPU-1")
	id := s.id(1)
	s.set("hang nvmlDeviceGetFieldValues gpu 1")
	done := make(chan error, 1)
	go func() { _, err := s.Read(id); done <- err }() // ends with the hang; received below
	s.eventually("the reading hangs", func() bool { return s.calls().InFlight(1) == 1 })
	before, began := s.calls(), time.Now()
	got, err := s.linkMatrix()
	if want := []string{"0: - 0? 18n", "2: 18n 0? -"}; !slices.Equal(got, want) || err == nil ||
		err.Error() != "GPU-1: it does not respond" {
		t.Errorf("got %q, %v\nwant %q", got, err, want)
	}
	if took := time.Since(began); took < linkLockTimeout {
		t.Errorf("wait for the GPU: got %v, want at least linkLockTimeout", took)
	}
	if n := s.calls().Since(before).GPUTotal(1); n != 0 {
		t.Errorf("calls on the hanging GPU: got %d, want 0", n)
	}
	s.clear("hang")
	s.must(<-done)
	if got, err := s.linkMatrix(); err != nil || len(got) != 3 {
		t.Errorf("after the hang: got %q, %v, want three rows", got, err)
	}
}

// TestHangInLinks has a hang in the first call about a link. The links of the
// other GPUs are complete, listings continue, and the GPU gets no other call.
func TestHangInLinks(t *testing.T) {
	s := newListedFixture(t, "gpus 3", "gpu 1 uuid GPU-1", "hang nvmlDeviceGetNvLinkState gpu 1")
	type matrixResult struct {
		rows []string
		err  error
	}
	results := make(chan matrixResult, 1)
	go func() { // ends with the hang at the latest; received below
		rows, err := s.linkMatrix()
		results <- matrixResult{rows, err}
	}()
	var got matrixResult
	select {
	case got = <-results:
	case <-time.After(testTimeout):
		t.Error("Links waits for the hanging GPU")
		s.clear("hang")
		got = <-results
	}
	if want := []string{"0: - 0? 18n", "2: 18n 0? -"}; !slices.Equal(got.rows, want) || got.err == nil ||
		got.err.Error() != "GPU-1: it does not respond" {
		t.Errorf("got %q, %v\nwant %q", got.rows, got.err, want)
	}
	s.list(3)
	if n := s.calls().InFlight(1); n != 1 || s.Idle() {
		t.Errorf("got %d calls in flight, idle %v, want 1, false", n, s.Idle())
	}
	s.clear("hang")
	s.eventually("the hang ended", s.Idle)
	if got, err := s.linkMatrix(); err != nil || len(got) != 3 {
		t.Errorf("after the hang: got %q, %v, want three rows", got, err)
	}
}

// TestHangInPaths has hanging calls about pairs. Only the first pair is locked.
func TestHangInPaths(t *testing.T) {
	s := newListedFixture(t, "gpus 3", "gpu 0 uuid GPU-0", "gpu 1 uuid GPU-1", "gpu 2 uuid GPU-2",
		"hang nvmlDeviceGetTopologyCommonAncestor gpu *")
	before := s.calls()
	got, err := s.linkMatrix()
	const wantErr = "GPU-1: it does not respond; GPU-2: path to GPU-0: it does not respond"
	if want := []string{"0: - 0? 18?", "2: 18? 0? -"}; !slices.Equal(got, want) || err == nil ||
		err.Error() != wantErr {
		t.Errorf("got %q, %v\nwant %q", got, err, want)
	}
	if n := s.calls().Since(before).Count("nvmlDeviceGetTopologyCommonAncestor", 2); n != 0 {
		t.Errorf("calls about another GPU and the hanging pair: got %d, want 0", n)
		s.clear("hang")
	}
	s.values(2)
	s.clear("hang")
	s.eventually("the hang ended", s.Idle)
	for _, gpu := range []int{0, 1} {
		s.values(gpu)
	}
	if got, err := s.linkMatrix(); err != nil || len(got) != 3 {
		t.Errorf("after the hang: got %q, %v, want three rows", got, err)
	}
}

// TestLinksDuringReadings has GPUs with short calls. No link is missing.
func TestLinksDuringReadings(t *testing.T) {
	s := newListedFixture(t, "gpus 2", "slow nvmlDeviceGetFieldValues gpu * 5ms")
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	id := s.id(1)
	go func() { // ends with ctx
		defer close(ended)
		for ctx.Err() == nil {
			s.Read(id) //nolint:errcheck // keeps the GPU busy
			time.Sleep(5 * time.Millisecond)
		}
	}()
	got, err := s.linkMatrix()
	cancel()
	<-ended
	if want := []string{"0: - 18n", "1: 18n -"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("got %q, %v, want all links", got, err)
	}
}

func TestLinksEnd(t *testing.T) {
	s := newFixture(t, Options{}, "gpus 2")
	if _, err := s.Links(context.Background()); !errors.Is(err, device.ErrNoDriver) {
		t.Errorf("before the first listing: got %v, want ErrNoDriver", err)
	}
	s.list(2)
	before := s.calls()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if links, err := s.Links(ctx); links != nil || !errors.Is(err, context.Canceled) {
		t.Errorf("after the end of ctx: got %v, %v, want Canceled", links, err)
	}
	since := s.calls().Since(before)
	if n := since.GPUTotal(0) + since.GPUTotal(1) + since.GPUTotal(nvmltest.NoGPU); n != 0 {
		t.Errorf("calls after the end of ctx: got %d, want 0", n)
	}
}

func TestLibraryWithoutLinks(t *testing.T) {
	runInChild(t, func(dir string) {
		buildLibrary(t, filepath.Join(dir, "lib64"), "nvmlDeviceGetNvLinkState", "nvmlDeviceGetTopologyCommonAncestor")
	}, func(t *testing.T, dir string) {
		s := newFixture(t, Options{DriverRoots: []string{dir}}, "gpus 2")
		s.list(2)
		if got, err := s.linkMatrix(); err != nil || !slices.Equal(got, []string{"0: - 0?", "1: 0? -"}) {
			t.Errorf("got %q, %v, want unknown paths", got, err)
		}
	})
}

// TestLibraryWithoutLinkTypes finds the remote end of a link by its PCI
// address.
func TestLibraryWithoutLinkTypes(t *testing.T) {
	runInChild(t, func(dir string) {
		buildLibrary(t, filepath.Join(dir, "lib64"), "nvmlDeviceGetNvLinkRemoteDeviceType",
			"nvmlDeviceGetNvLinkRemotePciInfo_v2")
	}, func(t *testing.T, dir string) {
		s := newFixture(t, Options{DriverRoots: []string{dir}}, "gpus 3", "gpu 0 link 0-17 none",
			"gpu 0 link 0-3 gpu 1")
		s.list(3)
		if got, err := s.linkMatrix(); err != nil ||
			!slices.Equal(got, []string{"0: - 4n 0n", "1: 0n - 0n", "2: 0n 0n -"}) {
			t.Errorf("got %q, %v, want four NVLinks of GPU 0", got, err)
		}
	})
}

package nvml_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	nvmltest "github.com/podgauge/podgauge/test/nvml"
)

// linkMatrix formats the links as rows: "0: - 18n 18s", the number of NVLinks
// and a letter for the path. A GPU that is missing as A has no row.
func (s *fixture) linkMatrix() (rows []string, err error) {
	s.Helper()
	links, err := s.Links(context.Background())
	for i, a := range s.devices {
		row := fmt.Sprintf("%d:", i)
		found := false
		for _, b := range s.devices {
			at := slices.IndexFunc(links, func(l device.Link) bool { return l.A == a.GPU && l.B == b.GPU })
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
	const none = "gpu * link 0-17 none"
	for what, c := range map[string]struct {
		lines, want []string
	}{
		"all NVLinks through switches": {
			[]string{"gpus 3", "ancestor 0 2 system"}, []string{"0: - 18n 18s", "1: 18n - 18n", "2: 18s 18n -"},
		},
		"links of one GPU are down": {[]string{"gpus 2", "gpu 1 link 3-6 off"}, []string{"0: - 18n", "1: 14n -"}},
		"pairs, one lane down at one end": {
			[]string{
				"gpus 4", none, "gpu 0 link 0-3 gpu 1", "gpu 1 link 0-3 gpu 0", "gpu 1 link 2 off",
				"gpu 2 link 0-3 gpu 3", "gpu 3 link 0-3 gpu 2",
				"ancestor 0 1 single", "ancestor 2 3 internal", "ancestor 0 2 multiple", "ancestor 0 3 hostbridge",
			},
			[]string{"0: - 4p 0x 0h", "1: 3p - 0n 0n", "2: 0x 0n - 4b", "3: 0h 0n 4b -"},
		},
		"PCIe only": {[]string{"gpus 2", none}, []string{"0: - 0n", "1: 0n -"}},
		"link to an absent GPU": {
			[]string{"gpus 2", none, "gpu 0 link 0-3 gpu 7", "gpu 1 link 0 off"}, []string{"0: - 0n", "1: 0n -"},
		},
		"switches out of reach of one GPU": {
			[]string{"gpus 3", "gpu 2 link 0-17 none", "gpu 2 link 0-1 off"},
			[]string{"0: - 18n 0n", "1: 18n - 0n", "2: 0n 0n -"},
		},
		"pairs without a level": {
			[]string{"gpus 2", none, "fail nvmlDeviceGetTopologyCommonAncestor gpu * NOT_SUPPORTED"},
			[]string{"0: - 0?", "1: 0? -"},
		},
		"a GPU alone": {[]string{"gpus 1"}, nil},
		"short calls of a reading": {
			[]string{"gpus 2", "slow nvmlDeviceGetNvLinkState gpu * 1ms"}, []string{"0: - 18n", "1: 18n -"},
		},
	} {
		s := newListedFixture(t, c.lines...)
		ctx, cancel := context.WithCancel(t.Context())
		ended, id := make(chan struct{}), s.id(0)
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
		if err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%s: got %q, %v\nwant %q", what, got, err, c.want)
		}
		s.Close()
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
		{"fail nvmlDeviceGetNvLinkState gpu 1 RESET_REQUIRED", "GPU-1: NVLink 0: RESET_REQUIRED", []string{"0: - 0? 18n", "2: 18n 0? -"}, 1},
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
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		before = s.calls()
		if links, err := s.Links(ctx); links != nil || !errors.Is(err, context.Canceled) {
			t.Errorf("after the end of ctx: got %v, %v, want Canceled", links, err)
		}
		if n := s.calls().Since(before).GPUTotal(0) + s.calls().Since(before).GPUTotal(nvmltest.NoGPU); n != 0 {
			t.Errorf("calls after the end of ctx: got %d, want 0", n)
		}
		s.Close()
	}
}

// TestLibraryWithoutLinkTypes finds the remote end of a link by its PCI
// address.
func TestLibraryWithoutLinkTypes(t *testing.T) {
	withLibrary(t, []string{"nvmlDeviceGetNvLinkRemoteDeviceType", "nvmlDeviceGetNvLinkRemotePciInfo_v2"},
		[]string{"gpus 3", "gpu 0 link 0-17 none", "gpu 0 link 0-3 gpu 1"},
		func(s *fixture) {
			s.list(3)
			if got, err := s.linkMatrix(); err != nil ||
				!slices.Equal(got, []string{"0: - 4n 0n", "1: 0n - 0n", "2: 0n 0n -"}) {
				s.Errorf("got %q, %v, want four NVLinks of GPU 0", got, err)
			}
		})
}

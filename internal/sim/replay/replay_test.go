package replay_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/nvml"
	"github.com/podgauge/podgauge/internal/nvml/capture"
	"github.com/podgauge/podgauge/internal/sim/replay"
	"github.com/podgauge/podgauge/test/helpers/expect"
	"github.com/podgauge/podgauge/test/helpers/require"
	nvmltest "github.com/podgauge/podgauge/test/nvml"
)

// TestDamagedCapture checks that a foreign, newer or damaged file is one clear error.
func TestDamagedCapture(t *testing.T) {
	const begin = `{"podgauge_capture":1,"podgauge":"v1","arch":"amd64","answers":{`
	for content, want := range map[string]string{
		"":              "not a capture of podgauge",
		"gpus 2\n":      "not a capture of podgauge",
		`{"gpus":2}`:    "not a capture of podgauge",
		`[1]`:           "not a capture of podgauge",
		begin:           "damaged capture: unexpected EOF",
		begin + `"gpu0`: "damaged capture: unexpected EOF",
		`{"podgauge_capture":2,"podgauge":"v9","answers":[]}`:                            "format 2 of a capture, expected 1: use podgauge-sim v9",
		begin + `"nvmlInit":null}}`:                                                      `damaged capture: "nvmlInit": unknown function or number of values`,
		begin + `"":{}}}`:                                                                `damaged capture: "": unknown function or number of values`,
		begin + `"gpu0 nvmlDeviceExplode":{}}}`:                                          `damaged capture: "gpu0 nvmlDeviceExplode": unknown function or number of values`,
		begin + `"gpu0 nvmlDeviceGetName":{"values":["a","b"]}}}`:                        `damaged capture: "gpu0 nvmlDeviceGetName": unknown function or number of values`,
		begin + `"gpu0 nvmlDeviceGetName":{"values":[5]}}}`:                              `damaged capture: "gpu0 nvmlDeviceGetName": json: cannot unmarshal number into Go value of type string`,
		begin + `"gpu0 nvmlDeviceGetMemoryInfo_v2":{"values":[{"Total":1,"Spent":2}]}}}`: `damaged capture: "gpu0 nvmlDeviceGetMemoryInfo_v2": json: unknown field "Spent"`,
	} {
		if _, err := replay.Read(strings.NewReader(content)); err == nil || err.Error() != want {
			t.Errorf("%q: got error %v, want %s", content, err, want)
		}
	}
	f, err := replay.Read(strings.NewReader(begin + `}}`))
	require.NoError(t, err)
	b := nvml.New(nvml.Options{Library: f.Library()})
	if devices, err := b.Devices(t.Context()); err == nil {
		t.Errorf("a capture without answers: got %v, want an error", devices)
	}
}

// TestHangingCall captures two GPUs of which one hangs: the capture takes seconds, marks the call as hung, and has the other GPU. In the
// replay, the same GPU hangs. The functions that the capture called change nothing.
func TestHangingCall(t *testing.T) {
	if testing.Short() {
		t.Skip("takes more than ten seconds")
	}
	dir := t.TempDir()
	_, err := nvmltest.Build(dir)
	require.NoError(t, err)
	require.NoError(t, os.Mkdir(filepath.Join(dir, "lib"), 0o755))
	require.NoError(t, os.Rename(filepath.Join(dir, "libnvidia-ml.so.1"), filepath.Join(dir, "lib", "libnvidia-ml.so.1")))
	scenario := nvmltest.NewScenario(filepath.Join(dir, "scenario"))
	require.NoError(t, scenario.Set("gpus 2", "hang nvmlDeviceGetUtilizationRates gpu 0"))
	t.Setenv(nvmltest.EnvScenario, filepath.Join(dir, "scenario"))
	t.Cleanup(func() { scenario.Clear("hang") })

	options := nvml.Options{DriverRoots: []string{dir}, DevRoot: dir, SysRoot: dir, ProcRoot: dir}
	var out bytes.Buffer
	began := time.Now()
	require.NoError(t, capture.Run(t.Context(), options, "v1", &out))
	if took := time.Since(began); took > 2*time.Minute {
		t.Errorf("the capture took %s", took)
	}
	f, err := replay.Read(&out)
	require.NoError(t, err)
	if f.Answers["gpu0 nvmlDeviceGetUtilizationRates"] == nil || f.Answers["gpu1 nvmlDeviceGetPerformanceState"] == nil {
		t.Fatalf("the capture lacks calls: %d", len(f.Answers))
	}
	for key, a := range f.Answers {
		expect.Equal(t, a.Hung, (key == "gpu0 nvmlDeviceGetUtilizationRates"), key, "hung")
		for _, word := range []string{"Set", "Reset", "Clear", "Create", "Destroy", "Modify", "Freeze"} {
			if strings.Contains(replay.Function(key), word) && !strings.HasPrefix(replay.Function(key), "nvmlEventSet") {
				t.Errorf("%s changes the node", key)
			}
		}
	}

	options.Library = f.Library()
	b := nvml.New(options)
	devices, err := b.Devices(t.Context())
	if err != nil || len(devices) != 2 {
		t.Fatalf("got %d devices, %v", len(devices), err)
	}
	read := func(id device.GPU) <-chan error {
		result := make(chan error, 1)
		go func() {
			_, err := b.Read(id)
			result <- err
		}()
		return result
	}
	hanging := read(devices[0].GPU)
	expect.NoError(t, <-read(devices[1].GPU))
	select {
	case err := <-hanging:
		t.Errorf("the hanging GPU: got %v", err)
	case <-time.After(100 * time.Millisecond):
	}
}

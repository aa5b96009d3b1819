package nvmltest

import (
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/podgauge/podgauge/test/helpers/require"
	"github.com/podgauge/podgauge/test/helpers/testfile"
)

func TestScenarioFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "scenario")
	s := NewScenario(path)
	set := func(lines ...string) func() error { return func() error { return s.Set(lines...) } }
	clearLines := func(words string) func() error { return func() error { return s.Clear(words) } }
	event := func(gpu int, what string) func() error { return func() error { return s.Event(gpu, what) } }
	for _, step := range []struct {
		do   func() error
		want string
	}{
		{set(), ""},
		{set("gpu 3 power 1", "gpu 30 power 2"), "gpu 3 power 1|gpu 30 power 2"},
		{set("gpu 3 power 5"), "gpu 30 power 2|gpu 3 power 5"},
		{set("gpu 3 field 82 1", "gpu 3 field 83 1", "gpu 3 field 82 2"), "gpu 30 power 2|gpu 3 power 5|gpu 3 field 83 1|gpu 3 field 82 2"},
		{clearLines("gpu 3"), "gpu 30 power 2"},
		{set("hang * gpu 1", "hang * gpu 2", "gpus 4", "gpus 5"), "gpu 30 power 2|hang * gpu 1|hang * gpu 2|gpus 5"},
		{clearLines("hang"), "gpu 30 power 2|gpus 5"},
		{clearLines("gpu 30"), "gpus 5"},
		{event(1, "xid 79"), "gpus 5|event 1000000 gpu 1 xid 79"},
		{event(2, "xid 31 x 10"), "gpus 5|event 1000000 gpu 1 xid 79|event 2000000 gpu 2 xid 31 x 10"},
		{clearLines("event 1000000"), "gpus 5|event 2000000 gpu 2 xid 31 x 10"},
		{clearLines(""), ""},
		{
			set("gpu 9 slice 0 a", "gpu 9 slice 1 b", "gpu 9 slice 0 c", "ancestor 0 1 x", "ancestor 0 1 y", "confidential on",
				"confidential off", "gpu 9 metric 2/1 5", "gpu 9 metric 2/1 6", "nonsense"),
			"gpu 9 slice 1 b|gpu 9 slice 0 c|ancestor 0 1 y|confidential off|gpu 9 metric 2/1 6|nonsense",
		},
	} {
		require.NoError(t, step.do())
		content := testfile.Read(t, path)
		_, lines, _ := strings.Cut(content, "\n")
		if got := strings.ReplaceAll(strings.TrimSpace(lines), "\n", "|"); got != step.want {
			t.Errorf("got  %s\nwant %s", got, step.want)
		}
	}
	if err := NewScenario(filepath.Join(path, "nowhere")).Set(); err == nil {
		t.Error("no error for a path without a folder")
	}
}

// TestScenarioChanges checks that each call returns the newest value, also if the file's length does not change.
func TestScenarioChanges(t *testing.T) {
	runOnNode(t, func(n *testNode) {
		n.setup()
		gpu := n.gpu(0)
		for celsius := uint32(10); celsius < 100; celsius++ {
			n.setLines("gpu 0 temperature " + string(rune('0'+celsius/10)) + string(rune('0'+celsius%10)))
			got, ret := gpu.GetTemperature(nvml.TEMPERATURE_GPU)
			n.want(nvml.SUCCESS, ret)
			if got != celsius {
				n.Fatalf("read %d after it was set to %d", got, celsius)
			}
		}
	})
}

// TestInvalidScenario checks that an invalid file does not change the scenario and causes a single line on standard error.
func TestInvalidScenario(t *testing.T) {
	runOnNode(t, func(n *testNode) {
		messages := redirectStderr(n)
		n.setup("gpu 0 temperature 42")
		gpu, path := n.gpu(0), os.Getenv(EnvScenario)
		for _, invalid := range []struct{ text, message string }{
			{"gpus 3\nnonsense\n", `:2: unknown directive "nonsense"`},
			{"gpus 17\n", `:1: the number of GPUs is "17", want a number from 0 to 16`},
			{"gpu 0 colour green\n", `unknown key "colour"`},
			{"gpu 0 power\n", `invalid value ""`},
			{"gpu 0 power 5w\n", `invalid value "5w"`},
			{"gpu 0 power 5-1/s\n", `invalid value "5-1/s"`},
			{"gpu 0 power 5~9/0s\n", `invalid value "5~9/0s"`},
			{"gpu 0 power 5 6\n", `unexpected word "6"`},
			{"gpu 16 lost\n", `invalid GPU selector "16"`},
			{"gpu - lost\n", `invalid GPU selector "-"`},
			{"gpu 0 pci somewhere\n", `invalid text "somewhere"`},
			{"gpu 0 field 82/x 1\n", `invalid field "82/x"`},
			{"gpu 0 field 82 1 u128\n", `unknown value type "u128"`},
			{"event 1000000 gpu 0\n", "event lacks a GPU, or an xid or type"},
			{"event 1000000 gpu 0 type night\n", `unknown event type "night"`},
			{"event 1000000 gpu 0 xid 79 x 0\n", "event has x 0, want at least 1"},
			{"gpu 0 reset soon\n", `invalid Unix time "soon"`},
			{"event 1000000 gpu 0 xid 79 at night\n", `unknown word "at"`},
			{"fail nvmlDeviceGetTemprature gpu 0 UNKNOWN\n", `unknown NVML function "nvmlDeviceGetTemprature"`},
			{"fail * gpu 0 BROKEN\n", `unknown return code "BROKEN"`},
			{"hang *\n", `missing "gpu <selector>"`},
			{"hang field:82 gpu 0\n", `unknown NVML function "field:82"`},
			{"slow * gpu 0 5s\n", `invalid time in ms "5s"`},
			{"lock door\n", `invalid lock "door", want driver`},
			{"gpu 0 slice 7 1g.10gb gi 1 ci 0\n", `the index of the MIG device is "7", want a number from 0 to 6`},
			{"gpu 0 slice 0 small gi 1 ci 0\n", `invalid MIG profile "small"`},
			{"gpu 0 slice 0 1g.10gb gi 1\n", "MIG device lacks gi or ci"},
			{"gpu 0 slice 0 1g.10gb gi 1 ci 0 colour green\n", `unknown word "colour"`},
			{"gpu 0 link 36 switch\n", `invalid link "36"`},
			{"gpu 0 link 3-1 switch\n", `invalid link "3-1"`},
			{"gpu 0 link 0 moon\n", `unknown link target "moon"`},
			{"gpu 0 link 0 gpu 16\n", `the remote GPU is "16"`},
			{"ancestor 0 1 bus\n", `unknown topology level "bus"`},
			{"reuse paper\n", `invalid reuse "paper", want handles`},
			{"short paper\n", `invalid short "paper", want processes`},
			{"add salt\n", `invalid add "salt", want fields`},
			{"gpu 0 model v100\n", `unknown GPU model "v100"`},
			{"gpu 0 metric 477 1\n", `invalid metric "477"`},
			{"gpu 0 metric 5-2 1\n", `invalid metric "5-2"`},
			{"gpu 0 metric 5/link 1\n", `invalid metric "5/link"`},
			{"gpu 0 process 1 2 type daemon\n", `unknown process type "daemon"`},
			{"gpu 0 process 1 2 sm much\n", `invalid value "much"`},
			{"confidential secret\n", `unknown confidential computing state "secret"`},
			{"fail metric:x gpu 0 UNKNOWN\n", `unknown NVML function "metric:x"`},
			{"epoch today\n", `invalid Unix time "today"`},
			{"gpu 0 temperature 4", "missing final newline"},
			{"", "missing final newline"},
		} {
			n.mustSucceed(os.WriteFile(path+".bad", []byte(invalid.text), 0o600))
			n.mustSucceed(os.Rename(path+".bad", path))
			for range 3 {
				celsius, ret := gpu.GetTemperature(nvml.TEMPERATURE_GPU)
				n.want(nvml.SUCCESS, ret)
				if celsius != 42 {
					n.Errorf("%q: temperature is %d", invalid.text, celsius)
				}
			}
			if got := messages(); strings.Count(got, "\n") != 1 || !strings.Contains(got, invalid.message) || !strings.Contains(got, path) {
				n.Errorf("%q: want one line with %q and the file's name, got\n%s", invalid.text, invalid.message, got)
			}
		}
		n.setLines("gpu 0 temperature 43")
		if celsius, _ := gpu.GetTemperature(nvml.TEMPERATURE_GPU); celsius != 43 {
			n.Errorf("temperature is %d, want 43", celsius)
		}
	})
}

// redirectStderr redirects standard error to a file and returns a function that reads the new content.
func redirectStderr(n *testNode) func() string {
	path := filepath.Join(n.TempDir(), "stderr")
	in, err := os.Create(path)
	n.mustSucceed(err)
	out, err := os.Open(path)
	n.mustSucceed(err)
	n.mustSucceed(syscall.Dup3(int(in.Fd()), 2, 0))
	return func() string {
		text, err := io.ReadAll(out)
		n.mustSucceed(err)
		return string(text)
	}
}

// scenarioKeys returns the names of an X macro of scenario.h.
func scenarioKeys(t *testing.T, macro string) []string {
	t.Helper()
	header, err := fs.ReadFile(sources, "standin/scenario.h")
	require.NoError(t, err)
	definition := regexp.MustCompile(`(?s)#define ` + macro + `\(X\)(.*?[^\\])\n`).FindSubmatch(header)
	var keys []string
	for _, m := range regexp.MustCompile(`X\((\w+)\)`).FindAllSubmatch(definition[1], -1) {
		keys = append(keys, string(m[1]))
	}
	slices.Sort(keys)
	return keys
}

// TestReadme checks that README.md documents each key and model.
func TestReadme(t *testing.T) {
	page := testfile.Read(t, "README.md")
	for _, key := range slices.Concat(scenarioKeys(t, "GPU_VALUES"), scenarioKeys(t, "GPU_TEXTS")) {
		if !strings.Contains(page, "`"+key+"`") {
			t.Errorf("README.md lacks %s", key)
		}
	}
	models, err := fs.Glob(sources, "standin/models/*.scenario")
	if err != nil || len(models) == 0 {
		t.Fatalf("%v, %v", models, err)
	}
	for _, file := range models {
		name := strings.TrimSuffix(filepath.Base(file), ".scenario")
		if !regexp.MustCompile(`model [^ ]*\b` + name + `\b`).MatchString(page) {
			t.Errorf("README.md lacks model %s", name)
		}
	}
}

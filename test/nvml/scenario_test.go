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

	"github.com/podgauge/podgauge/test/helpers/expect"
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
		expect.Equal(t, strings.ReplaceAll(strings.TrimSpace(lines), "\n", "|"), step.want)
	}
	expect.Error(t, NewScenario(filepath.Join(path, "nowhere")).Set(), "", "for a path without a folder")
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
		type invalidFile struct{ text, message string }
		files := []invalidFile{
			{"gpus 3\nnonsense\n", `:2: unknown directive "nonsense"`},
			{"gpus 17\n", `:1: the number of GPUs is "17", want a number from 0 to 16`},
			{"gpu 0 temperature 4", "missing final newline"},
			{"", "missing final newline"},
		}
		for line := range strings.Lines(testfile.Read(n, "testdata/invalid_lines.txt")) {
			text, message, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " => ")
			files = append(files, invalidFile{text + "\n", message})
		}
		for _, invalid := range files {
			n.mustSucceed(os.WriteFile(path+".bad", []byte(invalid.text), 0o600))
			n.mustSucceed(os.Rename(path+".bad", path))
			for range 3 {
				celsius, ret := gpu.GetTemperature(nvml.TEMPERATURE_GPU)
				n.want(nvml.SUCCESS, ret)
				expect.Equal(n, celsius, 42, invalid.text, "temperature")
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

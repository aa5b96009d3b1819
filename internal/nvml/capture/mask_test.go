package capture_test

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	backend "github.com/podgauge/podgauge/internal/nvml"
	"github.com/podgauge/podgauge/internal/nvml/capture"
	"github.com/podgauge/podgauge/test/bubble"
	"github.com/podgauge/podgauge/test/helpers/expect"
	"github.com/podgauge/podgauge/test/helpers/require"
)

// fakeDriver answers each call with a text, in strings and in arrays, and with 1; fields are 0, so there are no links.
type fakeDriver string

func (text fakeDriver) answer(c *capture.Call) (results []reflect.Value) {
	for i := range c.Type.NumOut() {
		v := reflect.New(c.Type.Out(i)).Elem()
		if isHandle := v.Kind() == reflect.Interface && v.Type() != reflect.TypeFor[error](); isHandle {
			v = c.NewHandle(i, nil)
		}
		text.fill(v)
		results = append(results, v)
	}
	for _, v := range c.Filled() {
		text.fill(v)
	}
	return results
}

func (text fakeDriver) fill(v reflect.Value) {
	switch {
	case v.Type() == reflect.TypeFor[nvml.Return](): // SUCCESS
	case v.Kind() == reflect.String:
		v.SetString(string(text))
	case v.CanInt():
		v.SetInt(1)
	case v.CanUint():
		v.SetUint(1)
	case v.Kind() == reflect.Array && v.Type().Elem().Size() == 1:
		for i := range min(v.Len(), len(text)) {
			v.Index(i).Set(reflect.ValueOf(text[i]).Convert(v.Type().Elem()))
		}
	case v.Kind() == reflect.Array, v.Kind() == reflect.Slice:
		for i := range v.Len() {
			text.fill(v.Index(i))
		}
	case v.Kind() == reflect.Struct:
		for name, field := range v.Fields() {
			if name.IsExported() && v.Type() != reflect.TypeFor[nvml.FieldValue]() {
				text.fill(field)
			}
		}
	}
}

// randomText returns a name or number of a machine, possibly beside words that a capture keeps.
func randomText(random *rand.Rand) (text, secret string) {
	letters := func(n int, of string) string {
		b := make([]byte, n)
		for i := range b {
			b[i] = of[random.IntN(len(of))]
		}
		return string(b)
	}
	const hex, lower, digits = "0123456789abcdef", "abcdefghijklmnopqrstuvwxyz", "0123456789"
	uuid := strings.Join([]string{letters(8, hex), letters(4, hex), letters(4, hex), letters(4, hex), letters(12, hex)}, "-")
	secrets := []string{
		uuid, "GPU-" + uuid, "MIG-" + uuid, "MIG-GPU-" + uuid + "/7/0", strings.ToUpper(uuid), letters(13, digits),
		letters(2, strings.ToUpper(lower)) + letters(12, digits), "gpu-" + letters(6, lower), letters(7, lower) + ".example.com",
		"llm-" + letters(10, lower+digits) + "-" + letters(5, lower), letters(9, lower),
	}
	secret = secrets[random.IntN(len(secrets))]
	return []string{"", "NVIDIA H100 ", "NVIDIA A100-", "590.48.01 ", "96.00.74.00.01"}[random.IntN(5)] + secret +
		[]string{"", " 80GB HBM3", " MIG 1g.10gb", "\n", ".590"}[random.IntN(5)], secret
}

// FuzzMasking hides a UUID, serial number, or name of a host or pod in each text of the driver. No part of it is in the capture.
func FuzzMasking(f *testing.F) {
	for seed := range uint64(25) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) {
		text, secret := randomText(rand.New(rand.NewPCG(seed, 0))) //nolint:gosec // not for secrets
		out := captureOf(t, text)
		if !strings.Contains(out, `"gpu0/mig0 nvmlDeviceGetUUID"`) || !strings.Contains(out, "nvmlDeviceGetPlatformInfo") {
			t.Fatalf("got no answers:\n%s", out)
		}
		for _, part := range regexp.MustCompile(`[-./]`).Split(secret, -1) {
			asNumbers := strings.ReplaceAll(strings.Trim(fmt.Sprintf("%d", []byte(part)), "[]"), " ", ",")
			for _, form := range []string{part, asNumbers} {
				if len(part) > 4 && part != "example" && strings.Contains(strings.ToLower(out), strings.ToLower(form)) {
					t.Errorf("%q: the capture has %q", text, form)
				}
			}
		}
	})
}

// captureOf captures a driver with a text.
func captureOf(t *testing.T, text string) string { return captureDriver(t, fakeDriver(text).answer) }

func captureDriver(t *testing.T, answer func(*capture.Call) []reflect.Value) (out string) {
	bubble.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		var b bytes.Buffer
		err := capture.Run(context.Background(), backend.Options{
			SysRoot: dir, ProcRoot: dir, DevRoot: dir,
			Library: capture.NewTap(nil, answer),
		}, "v1", &b)
		require.NoError(t, err)
		out = b.String()
	})
	return out
}

// TestKeptTexts checks that the texts by which podgauge knows models and versions are kept.
func TestKeptTexts(t *testing.T) {
	for function, texts := range map[string][]string{
		"nvmlSystemGetDriverVersion": {"580.95.05", "590.48.01", "535.43"},
		"nvmlDeviceGetVbiosVersion":  {"96.00.74.00.01"},
		"nvmlDeviceGetName": {
			"NVIDIA H100 80GB HBM3", "NVIDIA H100 80GB HBM3 MIG 1g.10gb", "NVIDIA A100-SXM4-80GB MIG 1c.3g.40gb", "NVIDIA H200",
			"NVIDIA GeForce RTX 2080 SUPER", "NVIDIA L40S", "Tesla T4", "NVIDIA GB200", "NVIDIA RTX PRO 6000 Blackwell Server Edition",
			"NVIDIA GH200 480GB", "Tesla V100-SXM2-16GB", "NVIDIA H100 NVL", "NVIDIA A30 MIG 1g.6gb+me", "GRID A100-10C", "NVIDIA TITAN Xp",
		},
	} {
		for _, text := range texts {
			if out := captureOf(t, text); !strings.Contains(out, fmt.Sprintf(`%s":{"values":["%s"]`, function, text)) {
				t.Errorf("%s: %q is masked", function, text)
			}
		}
	}
}

// TestListsEndAtCount checks that a list has the driver's entries only, and not those of earlier calls with the same buffer.
func TestListsEndAtCount(t *testing.T) {
	list := regexp.MustCompile(`"gpu0 nvmlDeviceGetComputeRunningProcesses_v3":{"values":.*`).FindString(captureOf(t, "590.48.01"))
	if strings.Count(list, "Pid") != 1 || !strings.Contains(list, "}],1]") {
		t.Errorf("got %s, want one process", list)
	}
}

// TestSlowInitialization checks that a capture has the GPUs of a driver that is initialized slowly, as without persistence mode.
func TestSlowInitialization(t *testing.T) {
	out := captureDriver(t, func(c *capture.Call) []reflect.Value {
		if c.Function == "nvmlInit" {
			time.Sleep(20 * time.Second)
		}
		return fakeDriver("590.48.01").answer(c)
	})
	expect.Contains(t, out, "gpu0 nvmlDeviceGetPerformanceState", "got no GPU")
}

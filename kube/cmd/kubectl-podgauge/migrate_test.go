package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/podgauge/podgauge/internal/cli"
	"github.com/podgauge/podgauge/test/helpers/require"
	"github.com/podgauge/podgauge/test/helpers/testfile"
	"k8s.io/cli-runtime/pkg/genericiooptions"
)

// TestMigrate checks the report, the exit status and the written files.
func TestMigrate(t *testing.T) {
	const rules = "groups: # of GPUs\n  - rules:\n      - alert: Hot\n        expr: DCGM_FI_DEV_GPU_TEMP > 85\n      - alert: Xid\n" +
		"        expr: DCGM_FI_DEV_XID_ERRORS > 0\n      - alert: Down\n        expr: up == 0\n"
	golden, err := filepath.Abs("testdata/migrate.txt")
	require.NoError(t, err)
	t.Chdir(t.TempDir())
	require.NoError(t, os.WriteFile("rules.yaml", []byte(rules), 0o600))
	require.NoError(t, os.WriteFile("bad.json", []byte("{\n"), 0o600))
	out, errs, status := runMigrate(t, "rules.yaml")
	if status != cli.ExitError || errs != "" {
		t.Errorf("got status %d and %q", status, errs)
	}
	testfile.CheckGolden(t, *update, golden, out)
	if files, _ := os.ReadDir("."); len(files) != 2 {
		t.Errorf("files without --write: %v", files)
	}

	_, errs, status = runMigrate(t, "--write", "absent.json", "bad.json", "rules.yaml")
	if want := "open absent.json: no such file or directory\nbad.json: parse JSON: line 2: unexpected end of JSON input\n"; errs != want || status != cli.ExitError {
		t.Errorf("got status %d and %q, want %q", status, errs, want)
	}
	if got := testfile.Read(t, "rules.podgauge.yaml"); got != strings.Replace(rules, "DCGM_FI_DEV_GPU_TEMP", `nvidia_gpu_temperature_celsius{sensor="gpu"}`, 1) {
		t.Errorf("got the file\n%s", got)
	}
	if got := testfile.Read(t, "rules.yaml"); got != rules {
		t.Errorf("the file has changed:\n%s", got)
	}
	if _, errs, _ = runMigrate(t, "--write", "rules.yaml"); errs != "open rules.podgauge.yaml: file exists\n" {
		t.Errorf("existing file: got %q", errs)
	}

	require.NoError(t, os.WriteFile("rules.yaml", []byte(strings.Replace(rules, "DCGM_FI_DEV_XID_ERRORS", "DCGM_FI_DEV_GPU_UTIL", 1)), 0o600))
	if _, errs, status := runMigrate(t, "rules.yaml"); errs != "" || status != cli.ExitOK {
		t.Errorf("all translated: got status %d and %q", status, errs)
	}
	if _, errs, status := runMigrate(t); !strings.Contains(errs, "requires at least 1 arg") || status != cli.ExitUsage {
		t.Errorf("no file: got status %d and %q", status, errs)
	}
}

func runMigrate(t *testing.T, args ...string) (out, errs string, status int) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	c := newClient(genericiooptions.IOStreams{In: strings.NewReader(""), Out: &stdout, ErrOut: &stderr})
	status = run(t.Context(), c, append([]string{"migrate"}, args...))
	return stdout.String(), stderr.String(), status
}

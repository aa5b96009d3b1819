package main

import (
	"bytes"
	"context"
	"io"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
)

// TestWrongCommandLines: each gets one line, status 2, and nothing is started.
func TestWrongCommandLines(t *testing.T) {
	for _, c := range []struct {
		args []string
		env  map[string]string
		says string
	}{
		{args: []string{"--no-such-flag"}, says: "no-such-flag"},
		{args: []string{"stray"}, says: `unexpected argument "stray"`},
		{args: []string{"--simulate", "node"}, says: `unexpected argument "node"`}, // an optional value wants =
		{args: []string{"--simulate=cluster"}, says: "--simulate=cluster"},
		{args: []string{"--web.listen-address=9400"}, says: "--web.listen-address"},
		{args: []string{"--web.telemetry-path=metrics"}, says: "--web.telemetry-path"},
		{args: []string{"--web.telemetry-path=/healthz"}, says: "--web.telemetry-path"},
		{args: []string{"--web.telemetry-path=/{x"}, says: "--web.telemetry-path"},
		{args: []string{"--log.level=loud"}, says: "--log.level"},
		{args: []string{"--log.format=xml"}, says: "--log.format"},
		{args: []string{"--device-plugin=maybe"}, says: "device-plugin"},
		{args: []string{"--kubelet-dir="}, says: "--kubelet-dir"},
		{env: map[string]string{"PASS_DEVICE_SPECS": "perhaps"}, says: "PASS_DEVICE_SPECS"},
	} {
		var out, errs bytes.Buffer
		status := run(t.Context(), c.args, func(name string) string { return c.env[name] }, &out, &errs)
		line := errs.String()
		if status != exitUsage || !strings.Contains(line, c.says) || strings.Count(line, "\n") != 1 || out.Len() > 0 {
			t.Errorf("%v %v: status %d, stdout %q, stderr %q", c.args, c.env, status, out.String(), line)
		}
	}
}

func TestEnvironmentStandsForFlags(t *testing.T) {
	env := map[string]string{"PASS_DEVICE_SPECS": "true", "NVIDIA_DRIVER_ROOT": "/run/nvidia/driver", "DRIVER_ROOT_CTR_PATH": "/d"}
	getenv := func(name string) string { return env[name] }
	c, err := parse(nil, getenv, io.Discard)
	if err != nil || !c.passDeviceSpecs || c.driverRoot != "/run/nvidia/driver" || c.driverRootCtr != "/d" {
		t.Errorf("from the environment: %+v, %v", c, err)
	}
	c, err = parse([]string{"--pass-device-specs=false", "--driver-root=/x", "--container-driver-root=/y", "--kubelet-dir=/k"}, getenv, io.Discard)
	if err != nil || c.passDeviceSpecs || c.driverRoot != "/x" || c.driverRootCtr != "/y" || c.devicePluginDir != "/k/device-plugins" {
		t.Errorf("flags before the environment: %+v, %v", c, err)
	}
}

func TestVersionAndHelp(t *testing.T) {
	var out, errs bytes.Buffer
	if status := run(t.Context(), []string{"--version"}, os.Getenv, &out, &errs); status != exitOK || out.String() != "podgauge dev\n" {
		t.Errorf("--version: %d %q %q", status, out.String(), errs.String())
	}
	if status := run(t.Context(), []string{"--help"}, os.Getenv, &out, &errs); status != exitOK || !strings.Contains(errs.String(), "--kubelet-dir") {
		t.Errorf("--help: %d %q", status, errs.String())
	}
}

// TestTakenAddress: what cannot be served says so in one line, with status 1.
func TestTakenAddress(t *testing.T) {
	var errs bytes.Buffer
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	w := newWorld(t, 1)
	address := strings.TrimPrefix(w.url, "http://")
	status := run(ctx, []string{"--simulate", "--web.listen-address=" + address}, os.Getenv, io.Discard, &errs)
	if status != exitError || strings.Count(errs.String(), "\n") != 1 || !strings.Contains(errs.String(), address) {
		t.Errorf("status %d, stderr %q", status, errs.String())
	}
}

// TestReadmeFlagTable: the table in the README is what the flags are.
func TestReadmeFlagTable(t *testing.T) {
	const file = "../../README.md"
	readme, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	between := regexp.MustCompile(`(?s)(<!-- flags -->\n).*(<!-- /flags -->)`)
	want := between.ReplaceAll(readme, []byte("${1}"+flagTable()+"${2}"))
	if *update {
		if err := os.WriteFile(file, want, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if !bytes.Equal(readme, want) {
		t.Errorf("the README's flag table is not what the flags are; make golden writes it anew")
	}
}

func flagTable() string {
	var c config
	var table strings.Builder
	table.WriteString("| flag | environment | default | |\n|---|---|---|---|\n")
	c.flags().VisitAll(func(f *pflag.Flag) {
		_, usage := pflag.UnquoteUsage(f)
		variable, byDefault := "", ""
		if v := environment[f.Name]; v != "" {
			variable = "`" + v + "`"
		}
		if f.DefValue != "" {
			byDefault = "`" + f.DefValue + "`"
		}
		table.WriteString("| `--" + f.Name + "` | " + variable + " | " + byDefault + " | " + strings.ReplaceAll(usage, "<", "\\<") + " |\n")
	})
	return table.String()
}

package chart

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
)

const (
	programPath   = root + "/bin/podgauge"
	simulatorPath = root + "/bin/podgauge-sim"
)

// programFlags are the program's.
func programFlags(t *testing.T) map[string]bool {
	t.Helper()
	help, err := exec.Command(programPath, "--help").CombinedOutput()
	if err != nil {
		t.Fatalf("%v: make build makes it", err)
	}
	all := map[string]bool{}
	for _, match := range regexp.MustCompile(`(?m)^ +(?:-\w, )?(--[a-z.-]+)`).FindAllStringSubmatch(string(help), -1) {
		all[match[1]] = true
	}
	return all
}

// TestCommandLine has podgauge itself read the flags, variables and files that each case gives it: `validate` refuses what
// the daemon would refuse. Folders are of the test, with what the chart mounts there.
func TestCommandLine(t *testing.T) {
	if _, err := os.Stat(programPath); err != nil {
		t.Fatalf("%v: make build makes it", err)
	}
	for _, c := range allCases(t) {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			documents := mustRender(t, c.values)
			container := decodeAll[apps.DaemonSet](t, documents)[0].Spec.Template.Spec.Containers[0]
			place := mountVolumes(t, documents)
			args := []string{"validate"}
			for _, arg := range container.Args {
				args = append(args, place.Replace(arg))
			}
			binary := programPath
			if slices.ContainsFunc(args, func(arg string) bool { return strings.HasPrefix(arg, "--simulate") }) {
				binary = simulatorPath
			}
			cmd := exec.Command(binary, args...)
			configured := false
			for _, v := range container.Env {
				if v.ValueFrom != nil {
					continue
				}
				configured = configured || v.Name == "CONFIG_FILE"
				cmd.Env = append(cmd.Env, v.Name+"="+place.Replace(v.Value))
			}
			if !configured {
				path := filepath.Join(t.TempDir(), "config.yaml")
				if err := os.WriteFile(path, []byte("version: v1"), 0o644); err != nil {
					t.Fatal(err)
				}
				cmd.Args = append(cmd.Args, path)
			}
			// Exit status 1: valid, but the devices of this machine are unknown.
			if out, err := cmd.CombinedOutput(); cmd.ProcessState.ExitCode() > 1 || !strings.Contains(string(out), "The config is valid.") {
				t.Errorf("%q %q: %v\n%s", cmd.Env, cmd.Args, err, out)
			}
		})
	}
}

// foreignVariables are variables that are not podgauge's: NVIDIA's runtime reads them, and Go's.
var foreignVariables = []string{"NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES", "NVIDIA_MIG_MONITOR_DEVICES", "GOGC"}

// TestVariables: podgauge reads each variable that the chart sets, and the chart sets each that podgauge reads, but for what is said
// of the chart in another way.
func TestVariables(t *testing.T) {
	known := map[string]bool{"NODE_NAME": true}
	for _, row := range regexp.MustCompile("(?m)^\\|`--.*$").FindAllString(read(t, root+"/docs/reference/flags.md"), -1) {
		if cells := strings.Split(row, "|"); len(cells) > 2 {
			for _, name := range regexp.MustCompile("`([A-Z_]+)`").FindAllStringSubmatch(cells[2], -1) {
				known[name[1]] = true
			}
		}
	}
	set := map[string]bool{}
	for _, c := range allCases(t) {
		for _, v := range decodeAll[apps.DaemonSet](t, mustRender(t, c.values))[0].Spec.Template.Spec.Containers[0].Env {
			if !known[v.Name] && !slices.Contains(foreignVariables, v.Name) {
				t.Errorf("%s: nobody reads %s", c.name, v.Name)
			}
			set[v.Name] = true
		}
	}
	for _, unset := range []string{
		"DRIVER_ROOT_CTR_PATH", "CONTAINER_DRIVER_ROOT", "KUBELET_SOCKET", "CONFIG_NAME_FILE", // places in the container
		"NVIDIA_CTK_PATH", // another name of NVIDIA_CDI_HOOK_PATH
	} {
		if !known[unset] || set[unset] {
			t.Errorf("%s is no exception any more", unset)
		}
		delete(known, unset)
	}
	for name := range known {
		if !set[name] {
			t.Errorf("no case sets %s", name)
		}
	}
}

// TestFlags: the chart gives each flag that has no variable, but for those whose default is right in every container.
func TestFlags(t *testing.T) {
	given := map[string]bool{}
	for _, c := range allCases(t) {
		for _, arg := range decodeAll[apps.DaemonSet](t, mustRender(t, c.values))[0].Spec.Template.Spec.Containers[0].Args {
			name, _, _ := strings.Cut(arg, "=")
			given[name] = true
		}
	}
	right := []string{
		"--web.telemetry-path",                                   // /metrics
		"--kubelet-dir", "--device-plugin-dir", "--pod-logs-dir", // the node's are mounted there
		"--version",
	}
	table := read(t, root+"/docs/reference/flags.md")
	found := 0
	for flag := range programFlags(t) {
		if strings.Contains(table, "|`"+flag+"`|`") { // with a variable
			continue
		}
		found++
		if given[flag] == slices.Contains(right, flag) {
			t.Errorf("%s: that a case gives it is %v", flag, given[flag])
		}
	}
	if found < 20 {
		t.Fatalf("podgauge has %d such flags", found)
	}
}

// mountVolumes writes what ConfigMaps and Secrets hold into folders, and tells where those are. What the chart does not make itself,
// and names, is a small example of it.
func mountVolumes(t *testing.T, documents []chartObject) *strings.Replacer {
	t.Helper()
	configs, web, tls := t.TempDir(), t.TempDir(), t.TempDir()
	place := strings.NewReplacer("/etc/podgauge/configs", configs, "/etc/podgauge/web", web, "/etc/podgauge/tls", tls)
	write := func(dir, name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(place.Replace(text)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(configs, "shared", "version: v1")
	write(web, "web-config.yml", "basic_auth_users: {}")
	certificate, key := newCertificate(t)
	write(tls, "tls.crt", certificate)
	write(tls, "tls.key", key)
	for _, m := range decodeAll[core.ConfigMap](t, documents) {
		for name, text := range m.Data {
			if m.Name == "podgauge-configs" {
				write(configs, name, text)
			}
		}
	}
	for _, s := range decodeAll[core.Secret](t, documents) {
		for name, text := range s.StringData {
			write(web, name, text)
		}
	}
	return place
}

// newCertificate is a certificate and its key.
func newCertificate(t *testing.T) (certificate, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	signed, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: signed})), string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
}

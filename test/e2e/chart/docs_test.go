package chart

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v4/pkg/strvals"
	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/podgauge/podgauge/test/helpers/certificate"
	"github.com/podgauge/podgauge/test/helpers/require"
	"github.com/podgauge/podgauge/test/helpers/testfile"
)

// TestDocs checks that the chart accepts the values in the docs, and that the docs link each example.
func TestDocs(t *testing.T) {
	linked, settings := map[string]bool{}, 0
	for _, page := range []string{
		"docs/how-to/install.md", "docs/how-to/monitor.md", "docs/how-to/tls.md", "docs/how-to/mig.md", "docs/how-to/sharing.md",
		"deploy/helm/podgauge/README.md", "deploy/helm/podgauge/templates/NOTES.txt",
	} {
		text := testfile.Read(t, root+"/"+page)
		for _, match := range regexp.MustCompile("(?:--set |`)([A-Za-z][A-Za-z.]*)=([^ \n`]*)").FindAllStringSubmatch(text, -1) {
			if strings.HasPrefix(match[1], "nvidia.") || strings.HasPrefix(match[1], "gfd.") {
				continue // a node's label, or a value for NVIDIA's chart
			}
			settings++
			values, err := strvals.Parse(match[1] + "=" + strings.Trim(match[2], `"`))
			require.NoError(t, err)
			if _, _, err := renderChart(string(mustJSON(t, values))); err != nil {
				t.Errorf("%s: %s=%s: %v", page, match[1], match[2], err)
			}
		}
		for _, match := range exampleLink.FindAllStringSubmatch(text, -1) {
			linked[match[1]] = true
		}
	}
	if settings < 10 {
		t.Errorf("got %d values, want at least 10", settings)
	}
	examples, err := filepath.Glob(chartDir + "/examples/*.yaml")
	if err != nil || len(examples) < 10 {
		t.Errorf("got %d examples, want at least 10: %v", len(examples), err)
	}
	for _, path := range examples {
		if name := filepath.Base(path); !linked[name] {
			t.Errorf("no page links the example %s", name)
		}
	}
}

var exampleLink = regexp.MustCompile(`\]\([^)]*/examples/(\w[\w-]*\.yaml)\)`)

// TestScrapeConfig checks that the scrape job selects the chart's pods and relabels as the monitors do.
func TestScrapeConfig(t *testing.T) {
	var file struct {
		Jobs []struct {
			Honor     bool `json:"honor_labels"`
			Discovery []struct {
				Selectors []struct {
					Label string `json:"label"`
				} `json:"selectors"`
			} `json:"kubernetes_sd_configs"`
			Relabel []struct {
				Source []string `json:"source_labels"`
				Regex  string   `json:"regex"`
				Action string   `json:"action"`
				Target string   `json:"target_label"`
			} `json:"relabel_configs"`
		} `json:"scrape_configs"`
	}
	if err := yaml.Unmarshal([]byte(testfile.Read(t, root+"/deploy/prometheus/scrape.yaml")), &file); err != nil || len(file.Jobs) != 1 {
		t.Fatalf("got %d jobs, want 1: %v", len(file.Jobs), err)
	}
	job, pod := file.Jobs[0], decodeAll[apps.DaemonSet](t, mustRender(t))[0].Spec.Template
	if !job.Honor {
		t.Error("the job lacks honor_labels, so that the label pod is podgauge's pod")
	}
	name, want, _ := strings.Cut(job.Discovery[0].Selectors[0].Label, "=")
	if pod.Labels[name] != want {
		t.Errorf("the selector %s=%s does not match the pod's labels %v", name, want, pod.Labels)
	}
	var node, port bool
	for _, r := range job.Relabel {
		node = node || r.Target == "node" && r.Source[0] == "__meta_kubernetes_pod_node_name"
		hasPort := slices.ContainsFunc(pod.Spec.Containers[0].Ports, func(p core.ContainerPort) bool { return p.Name == r.Regex })
		port = port || r.Action == "keep" && r.Source[0] == "__meta_kubernetes_pod_container_port_name" && hasPort
	}
	if !node || !port {
		t.Errorf("the job sets the label node: %v; selects the port: %v; want both", node, port)
	}
}

const (
	programPath   = root + "/bin/podgauge"
	simulatorPath = root + "/bin/podgauge-sim"
)

// programFlags returns the flags of podgauge.
func programFlags(t *testing.T) map[string]bool {
	t.Helper()
	help, err := exec.Command(programPath, "--help").CombinedOutput()
	if err != nil {
		t.Fatalf("no binary: run make build (%v)", err)
	}
	all := map[string]bool{}
	for _, match := range regexp.MustCompile(`(?m)^ +(?:-\w, )?(--[a-z.-]+)`).FindAllStringSubmatch(string(help), -1) {
		all[match[1]] = true
	}
	return all
}

// TestCommandLine checks the flags, variables and files of each case with `podgauge validate`. Temporary folders have the content of the
// mounted volumes.
func TestCommandLine(t *testing.T) {
	if _, err := os.Stat(programPath); err != nil {
		t.Fatalf("no binary: run make build (%v)", err)
	}
	for _, c := range allCases(t) {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			documents := mustRender(t, c.values)
			container := decodeAll[apps.DaemonSet](t, documents)[0].Spec.Template.Spec.Containers[0]
			paths := mountVolumes(t, documents)
			args := []string{"validate"}
			for _, arg := range container.Args {
				args = append(args, paths.Replace(arg))
			}
			binary := programPath
			if slices.ContainsFunc(args, func(arg string) bool { return strings.HasPrefix(arg, "--simulate") }) {
				binary = simulatorPath
			}
			cmd := exec.Command(binary, args...)
			hasConfig := false
			for _, v := range container.Env {
				if v.ValueFrom != nil {
					continue
				}
				hasConfig = hasConfig || v.Name == "CONFIG_FILE"
				cmd.Env = append(cmd.Env, v.Name+"="+paths.Replace(v.Value))
			}
			if !hasConfig {
				path := filepath.Join(t.TempDir(), "config.yaml")
				require.NoError(t, os.WriteFile(path, []byte("version: v1"), 0o644))
				cmd.Args = append(cmd.Args, path)
			}
			// Exit status 1: valid, but the devices of this machine are unknown.
			if out, err := cmd.CombinedOutput(); cmd.ProcessState.ExitCode() > 1 || !strings.Contains(string(out), "The config is valid.") {
				t.Errorf("%q %q: %v\n%s", cmd.Env, cmd.Args, err, out)
			}
		})
	}
}

// foreignVariables are variables of NVIDIA's runtime and Go's runtime.
var foreignVariables = []string{"NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES", "NVIDIA_MIG_MONITOR_DEVICES", "GOGC"}

// TestVariables checks that podgauge reads each variable of the chart, and that the chart sets each variable of podgauge, with a few
// exceptions.
func TestVariables(t *testing.T) {
	known := map[string]bool{"NODE_NAME": true, "POD_NAME": true}
	for _, row := range regexp.MustCompile("(?m)^\\|`--.*$").FindAllString(testfile.Read(t, root+"/docs/reference/flags.md"), -1) {
		if cells := strings.Split(row, "|"); len(cells) > 2 {
			for _, name := range regexp.MustCompile("`([A-Z_]+)`").FindAllStringSubmatch(cells[2], -1) {
				known[name[1]] = true
			}
		}
	}
	set := map[string]bool{}
	eachPod(t, func(name string, pod core.PodTemplateSpec) {
		for _, v := range pod.Spec.Containers[0].Env {
			if !known[v.Name] && !slices.Contains(foreignVariables, v.Name) {
				t.Errorf("%s: unknown variable %s", name, v.Name)
			}
			set[v.Name] = true
		}
	})
	for _, unset := range []string{
		"DRIVER_ROOT_CTR_PATH", "CONTAINER_DRIVER_ROOT", "KUBELET_SOCKET", // paths in the container
		"NVIDIA_CTK_PATH", // another name of NVIDIA_CDI_HOOK_PATH
	} {
		if !known[unset] || set[unset] {
			t.Errorf("%s is no longer an exception", unset)
		}
		delete(known, unset)
	}
	for name := range known {
		if !set[name] {
			t.Errorf("no case sets %s", name)
		}
	}
}

// TestFlags checks that the chart sets each flag without a variable, except flags with a suitable default.
func TestFlags(t *testing.T) {
	set := map[string]bool{}
	eachPod(t, func(_ string, pod core.PodTemplateSpec) {
		for _, arg := range pod.Spec.Containers[0].Args {
			name, _, _ := strings.Cut(arg, "=")
			set[name] = true
		}
	})
	defaults := []string{
		"--web.telemetry-path",                                   // /metrics
		"--kubelet-dir", "--device-plugin-dir", "--pod-logs-dir", // mount paths of the node's folders
		"--retired-file", // the mount path of its ConfigMap
		"--version",
	}
	table := testfile.Read(t, root+"/docs/reference/flags.md")
	found := 0
	for flag := range programFlags(t) {
		if strings.Contains(table, "|`"+flag+"`|`") { // with a variable
			continue
		}
		found++
		if set[flag] == slices.Contains(defaults, flag) {
			t.Errorf("%s: a case sets the flag: got %v, want %v", flag, set[flag], !set[flag])
		}
	}
	if found < 20 {
		t.Fatalf("got %d flags without variable, want at least 20", found)
	}
}

// mountVolumes writes the ConfigMaps and Secrets to folders, and returns a replacer for their mount paths. Objects that the chart only
// references have a minimal content.
func mountVolumes(t *testing.T, documents []chartObject) *strings.Replacer {
	t.Helper()
	configs, web, tls, sidecar := t.TempDir(), t.TempDir(), t.TempDir(), t.TempDir()
	paths := strings.NewReplacer("/etc/podgauge/configs", configs, "/etc/podgauge/web", web, "/etc/podgauge/tls", tls, "/run/podgauge-kube", sidecar)
	write := func(dir, name, text string) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(paths.Replace(text)), 0o600))
	}
	write(configs, "shared", "version: v1")
	write(web, "web-config.yml", "basic_auth_users: {}")
	certificate, key := certificate.New(t, 1)
	write(tls, "tls.crt", certificate)
	write(tls, "tls.key", key)
	for _, container := range decodeAll[apps.DaemonSet](t, documents)[0].Spec.Template.Spec.InitContainers {
		for _, arg := range container.Args { // podgauge-kube writes the default for nodes without the label
			if name, found := strings.CutPrefix(arg, "--config-default="); found {
				write(sidecar, "config-name", name)
			}
		}
	}
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
	return paths
}

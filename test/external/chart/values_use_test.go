package chart

import (
	"strings"
	"testing"

	apps "k8s.io/api/apps/v1"
)

// TestDevices: without NVIDIA's runtime /dev is the folder in which the device nodes are. A driver container makes them in its own.
func TestDevices(t *testing.T) {
	for values, want := range map[string]string{
		`{driver: {injection: host}}`:                                                              "/dev",
		`{driver: {injection: host}, nvidiaDriverRoot: /}`:                                         "/dev",
		`{driver: {injection: host}, nvidiaDriverRoot: /run/nvidia/driver}`:                        "/run/nvidia/driver/dev",
		`{driver: {injection: host}, nvidiaDriverRoot: /run/nvidia/driver, nvidiaDevRoot: /}`:      "/dev",
		`{driver: {injection: host}, nvidiaDriverRoot: /, nvidiaDevRoot: /run/nvidia/driver}`:      "/run/nvidia/driver/dev",
		`{driver: {injection: runtime}, nvidiaDriverRoot: /run/nvidia/driver, nvidiaDevRoot: /}`:   "",
		`{driver: {injection: host}, nvidiaDriverRoot: /home/kubernetes/bin, nvidiaDevRoot: /}`:    "/dev",
		`{driver: {injection: host}, kernelLog: {enabled: true}, nvidiaDriverRoot: /opt/a-driver}`: "/opt/a-driver/dev",
	} {
		var got string
		for _, v := range decodeAll[apps.DaemonSet](t, mustRender(t, values))[0].Spec.Template.Spec.Volumes {
			if v.Name == "dev" {
				got = v.HostPath.Path
			}
		}
		if got != want {
			t.Errorf("%s: /dev is %q of the node, want %q", values, got, want)
		}
	}
}

// TestStartedAnew: pods are made anew for what of a web config holds from the next start on, and for nothing else of it.
func TestStartedAnew(t *testing.T) {
	template := func(content string) string {
		set := decodeAll[apps.DaemonSet](t, mustRender(t, `webConfig: {tlsSecret: podgauge-tls, content: `+content+`}`))[0]
		return string(mustJSON(t, set.Spec.Template))
	}
	const before = `{basic_auth_users: {a: $2y$10$QOauhQNbBCuQDKes6eFzPeMqBSjb7Mr5DUmpZ/VcEd00UAV/LDeSi}}`
	for content, anew := range map[string]bool{
		before: false,
		`{basic_auth_users: {b: $2y$10$QOauhQNbBCuQDKes6eFzPeMqBSjb7Mr5DUmpZ/VcEd00UAV/LDeSi}}`: false,
		`{http_server_config: {headers: {X-Frame-Options: deny}}}`:                              false,
		`{tls_server_config: {cert_file: /etc/podgauge/tls/tls.crt, key_file: a}}`:              true,
		`{rate_limit: {interval: 1s, burst: 5}}`:                                                true,
	} {
		if (template(content) != template(before)) != anew {
			t.Errorf("%s: that pods are made anew is %v", content, !anew)
		}
	}
	const tls = `{tls_server_config: {cert_file: a, key_file: b}}`
	if template(tls) != template(strings.Replace(tls, "a", "c", 1)) {
		t.Error("pods are made anew for another certificate, which is followed as it is")
	}
}

// TestStatusInNotes: the command that the notes have for podgauge status reaches it.
func TestStatusInNotes(t *testing.T) {
	for values, want := range map[string]string{
		``:                               "-- podgauge status\n",
		`metrics: {port: 9410}`:          "-- podgauge status --web.listen-address=:9410\n",
		`webConfig: {existingSecret: a}`: "-- podgauge status --http.config.file=/etc/podgauge/web/http.yaml\n",
		`{metrics: {port: 9410}, webConfig: {existingSecret: a}}`: "-- podgauge status --web.listen-address=:9410 --http.config.file=/etc/podgauge/web/http.yaml\n",
		// The Secret that the chart makes has nothing but the web config: nobody in the container could ask.
		`webConfig: {content: {tls_server_config: {cert_file: a, key_file: b}}}`: "",
	} {
		_, notes, err := renderChart(values)
		if err != nil {
			t.Fatal(err)
		}
		if want != "" && !strings.Contains(notes, want) || want == "" && strings.Contains(notes, "podgauge status") {
			t.Errorf("%s: want %q, the notes are\n%s", values, want, notes)
		}
	}
}

// TestDoctorInNotes: doctor takes the daemon's flags by itself, and has no node to look at where that is simulated.
func TestDoctorInNotes(t *testing.T) {
	for values, named := range map[string]bool{``: true, `simulate: hardware`: true, `simulate: node`: false} {
		_, notes, err := renderChart(values)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(notes, "-- podgauge doctor\n") != named {
			t.Errorf("%s: want doctor named: %t; the notes are\n%s", values, named, notes)
		}
	}
}

// TestCapabilities: NVIDIA's runtime in mode legacy leaves /dev/nvidia-uvm to who has compute. podgauge asks no CUDA, but where
// Allocate answers device nodes it answers those that it sees.
func TestCapabilities(t *testing.T) {
	for values, want := range map[string]string{
		``:                              "utility",
		`compatWithCPUManager: false`:   "utility",
		`deviceListStrategy: cdi-cri`:   "utility", // its nodes are looked for below the driver's root
		`compatWithCPUManager: true`:    "compute,utility",
		`config: {name: a, default: b}`: "compute,utility", // nobody knows what is in it
		`config: {map: {a: "{version: v1, flags: {plugin: {passDeviceSpecs: true}}}"}}`:                                      "compute,utility",
		`config: {map: {default: "version: v1", a: "{version: v1, flags: {plugin: {passDeviceSpecs: true}}}"}}`:              "compute,utility",
		`config: {map: {default: "{version: v1, flags: {plugin: {passDeviceSpecs: false}}}"}}`:                               "utility",
		`{compatWithCPUManager: false, config: {map: {default: "{version: v1, flags: {plugin: {passDeviceSpecs: true}}}"}}}`: "utility",
	} {
		var got string
		for _, v := range decodeAll[apps.DaemonSet](t, mustRender(t, values))[0].Spec.Template.Spec.Containers[0].Env {
			if v.Name == "NVIDIA_DRIVER_CAPABILITIES" {
				got = v.Value
			}
		}
		if got != want {
			t.Errorf("%s: NVIDIA_DRIVER_CAPABILITIES is %q, want %q", values, got, want)
		}
	}
}

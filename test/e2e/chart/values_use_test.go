package chart

import (
	"strings"
	"testing"

	apps "k8s.io/api/apps/v1"
)

// TestDevices checks that without NVIDIA's runtime, the container mounts the folder with the device nodes. A driver container has its own.
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
			t.Errorf("%s: host path of /dev: got %q, want %q", values, got, want)
		}
	}
}

// TestWebConfigRestart checks that only changes of a web config that require a restart change the pod template.
func TestWebConfigRestart(t *testing.T) {
	template := func(content string) string {
		set := decodeAll[apps.DaemonSet](t, mustRender(t, `webConfig: {tlsSecret: podgauge-tls, content: `+content+`}`))[0]
		return string(mustJSON(t, set.Spec.Template))
	}
	const before = `{basic_auth_users: {a: $2y$10$QOauhQNbBCuQDKes6eFzPeMqBSjb7Mr5DUmpZ/VcEd00UAV/LDeSi}}`
	for content, restart := range map[string]bool{
		before: false,
		`{basic_auth_users: {b: $2y$10$QOauhQNbBCuQDKes6eFzPeMqBSjb7Mr5DUmpZ/VcEd00UAV/LDeSi}}`: false,
		`{http_server_config: {headers: {X-Frame-Options: deny}}}`:                              false,
		`{tls_server_config: {cert_file: /etc/podgauge/tls/tls.crt, key_file: a}}`:              true,
		`{rate_limit: {interval: 1s, burst: 5}}`:                                                true,
	} {
		if (template(content) != template(before)) != restart {
			t.Errorf("%s: the pod template changes: got %v, want %v", content, !restart, restart)
		}
	}
	const tls = `{tls_server_config: {cert_file: a, key_file: b}}`
	if template(tls) != template(strings.Replace(tls, "a", "c", 1)) {
		t.Error("the pod template changes for another certificate, which podgauge reloads")
	}
}

// TestStatusInNotes checks that the notes' podgauge status has the flags to reach the server.
func TestStatusInNotes(t *testing.T) {
	for values, want := range map[string]string{
		``:                               "-- podgauge status\n",
		`metrics: {port: 9410}`:          "-- podgauge status\n",
		`webConfig: {existingSecret: a}`: "-- podgauge status\n",
		`webConfig: {content: {tls_server_config: {cert_file: a, key_file: b}}}`: "-- podgauge status\n",
		`{state: {enabled: false}, web: {metricsOnly: false}}`:                   "-- podgauge status\n",
		// Without the state folder there is no socket, and the network requires a password, or lacks the API.
		`{state: {enabled: false}, webConfig: {existingSecret: a}}`: "",
		`{state: {enabled: false}, web: {metricsOnly: true}}`:       "",
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

// TestDoctorInNotes checks that the notes name podgauge doctor, unless the node is simulated.
func TestDoctorInNotes(t *testing.T) {
	for values, want := range map[string]bool{``: true, `simulate: hardware`: true, `simulate: node`: false} {
		_, notes, err := renderChart(values)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(notes, "-- podgauge doctor\n") != want {
			t.Errorf("%s: want podgauge doctor: %t; the notes are\n%s", values, want, notes)
		}
	}
}

// TestCapabilities checks the driver capabilities. NVIDIA's runtime in legacy mode mounts /dev/nvidia-uvm only with compute, and Allocate
// returns only device nodes that podgauge's container has.
func TestCapabilities(t *testing.T) {
	for values, want := range map[string]string{
		``:                              "utility",
		`compatWithCPUManager: false`:   "utility",
		`deviceListStrategy: cdi-cri`:   "utility", // device nodes are searched below the driver's root
		`compatWithCPUManager: true`:    "compute,utility",
		`config: {name: a, default: b}`: "compute,utility", // the content is unknown
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

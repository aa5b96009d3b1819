package chart

import (
	"strings"
	"testing"

	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
)

// checkPods checks a text of the pod for each of some values.
func checkPods(t *testing.T, of func(pod core.PodSpec) string, wanted map[string]string) {
	t.Helper()
	for values, want := range wanted {
		pod := decodeAll[apps.DaemonSet](t, mustRender(t, values, `image: {tag: v1}`))[0].Spec.Template.Spec
		if got := of(pod); got != want {
			t.Errorf("%s: got %q, want %q", values, got, want)
		}
	}
}

// TestRegistries checks that image.registry replaces the registry of the repository, that global.imageRegistry has precedence, and that the
// image of podgauge-sim is in the same folder.
func TestRegistries(t *testing.T) {
	image := func(pod core.PodSpec) string { return pod.Containers[0].Image }
	checkPods(t, image, map[string]string{
		``:                          "ghcr.io/podgauge/podgauge:v1",
		`image: {registry: r.test}`: "r.test/podgauge/podgauge:v1",
		`{global: {imageRegistry: g.test:5000}, image: {registry: r.test}}`:   "g.test:5000/podgauge/podgauge:v1",
		`{global: {imageRegistry: g.test/mirror}, simulate: hardware}`:        "g.test/mirror/podgauge/podgauge-sim:v1",
		`{image: {registry: r.test, repository: mirror/podgauge}}`:            "r.test/mirror/podgauge:v1",
		`{image: {registry: r.test, repository: localhost/podgauge}}`:         "r.test/podgauge:v1",
		`{image: {registry: r.test, repository: "old.test:5000/a/podgauge"}}`: "r.test/a/podgauge:v1",
		`{global: null, image: {repository: podgauge}}`:                       "podgauge:v1",
	})
}

// TestKubeImage checks that podgauge-kube's image has the tag and the registry of podgauge's, unless it has a tag of its own.
func TestKubeImage(t *testing.T) {
	for values, want := range map[string]string{
		``: "ghcr.io/podgauge/podgauge-kube:v1",
		`{image: {registry: r.test}, kubernetes: {image: {repository: mirror/kube}}}`: "r.test/mirror/kube:v1",
		`{global: {imageRegistry: g.test}, simulate: hardware}`:                       "g.test/podgauge/podgauge-kube:v1",
		`kubernetes: {image: {tag: v2}}`:                                              "ghcr.io/podgauge/podgauge-kube:v2",
		`kubernetes: {image: {digest: "sha256:` + testDigest + `"}}`:                  "ghcr.io/podgauge/podgauge-kube@sha256:" + testDigest,
	} {
		documents := mustRender(t, values, `{kubernetes: {events: true, pods: true}, image: {tag: v1}}`)
		controller := decodeAll[apps.Deployment](t, documents)[0].Spec.Template.Spec.Containers[0]
		sidecar := decodeAll[apps.DaemonSet](t, documents)[0].Spec.Template.Spec.Containers[1]
		if controller.Image != want || sidecar.Image != want {
			t.Errorf("%s: got %s and %s, want %s", values, controller.Image, sidecar.Image, want)
		}
	}
}

// TestDevices checks that without NVIDIA's runtime, the container mounts the folder with the device nodes. A driver container has its own.
func TestDevices(t *testing.T) {
	folder := func(pod core.PodSpec) string {
		for _, v := range pod.Volumes {
			if v.Name == "dev" {
				return v.HostPath.Path
			}
		}
		return ""
	}
	checkPods(t, folder, map[string]string{
		`{driver: {injection: host}}`:                                                              "/dev",
		`{driver: {injection: host}, nvidiaDriverRoot: /}`:                                         "/dev",
		`{driver: {injection: host}, nvidiaDriverRoot: /run/nvidia/driver}`:                        "/run/nvidia/driver/dev",
		`{driver: {injection: host}, nvidiaDriverRoot: /run/nvidia/driver, nvidiaDevRoot: /}`:      "/dev",
		`{driver: {injection: host}, nvidiaDriverRoot: /, nvidiaDevRoot: /run/nvidia/driver}`:      "/run/nvidia/driver/dev",
		`{driver: {injection: runtime}, nvidiaDriverRoot: /run/nvidia/driver, nvidiaDevRoot: /}`:   "",
		`{driver: {injection: host}, nvidiaDriverRoot: /home/kubernetes/bin, nvidiaDevRoot: /}`:    "/dev",
		`{driver: {injection: host}, kernelLog: {enabled: true}, nvidiaDriverRoot: /opt/a-driver}`: "/opt/a-driver/dev",
	})
}

// TestCapabilities checks the driver capabilities. NVIDIA's runtime in legacy mode mounts /dev/nvidia-uvm only with compute, and Allocate
// returns only device nodes that podgauge's container has.
func TestCapabilities(t *testing.T) {
	capabilities := func(pod core.PodSpec) string {
		for _, v := range pod.Containers[0].Env {
			if v.Name == "NVIDIA_DRIVER_CAPABILITIES" {
				return v.Value
			}
		}
		return ""
	}
	checkPods(t, capabilities, map[string]string{
		``:                              "utility",
		`compatWithCPUManager: false`:   "utility",
		`deviceListStrategy: cdi-cri`:   "utility", // device nodes are searched below the driver's root
		`compatWithCPUManager: true`:    "compute,utility",
		`config: {name: a, default: b}`: "compute,utility", // the content is unknown
		`config: {map: {a: "{version: v1, flags: {plugin: {passDeviceSpecs: true}}}"}}`:                                      "compute,utility",
		`config: {map: {default: "version: v1", a: "{version: v1, flags: {plugin: {passDeviceSpecs: true}}}"}}`:              "compute,utility",
		`config: {map: {default: "{version: v1, flags: {plugin: {passDeviceSpecs: false}}}"}}`:                               "utility",
		`{compatWithCPUManager: false, config: {map: {default: "{version: v1, flags: {plugin: {passDeviceSpecs: true}}}"}}}`: "utility",
	})
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

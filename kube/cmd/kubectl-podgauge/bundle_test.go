package main

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/cli"
	"github.com/podgauge/podgauge/internal/web/api"
	"github.com/podgauge/podgauge/test/helpers/expect"
	"github.com/podgauge/podgauge/test/helpers/require"
	"github.com/podgauge/podgauge/test/helpers/testfile"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
)

const podgaugeLog = "level=INFO msg=\"device unhealthy\" reason=xid_79 url=http://10.0.0.1:9400/metrics\n" +
	`msg="proxy https://user:hunter2@proxy:3128" password=hunter2 header="Authorization: Bearer hunter2" body="{\"token\": \"hunter2\"}"` + "\n"

// newBundleCluster returns a cluster with a node whose second GPU failed. The node's debug pod runs at once.
func newBundleCluster(t *testing.T) (c *fakeCluster, debugPods *[]string) {
	node := newNode(time.Now())
	for i := range node.devices.Devices {
		node.devices.Devices[i].InfoLabels = map[string]string{"serial": fmt.Sprint("165002300000", i), "vbios_version": "96.00.74.00.01", "driver_version": "580.95.05"}
	}
	c, debugPods = newFakeCluster(t, map[string]*fakeNode{"node-a": node}), new([]string)
	pods := "/api/v1/namespaces/podgauge/pods"
	c.mux.HandleFunc("GET "+pods+"/podgauge-node-a/log", func(w http.ResponseWriter, r *http.Request) {
		if r.FormValue("previous") == "true" || r.FormValue("container") != "podgauge" {
			writeJSON(w, http.StatusBadRequest, metav1.Status{Status: metav1.StatusFailure, Message: "previous terminated container not found"})
			return
		}
		io.WriteString(w, podgaugeLog)
	})
	c.mux.HandleFunc("GET /api/v1/nodes/node-a", func(w http.ResponseWriter, _ *http.Request) {
		n := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-a", Annotations: map[string]string{"hunter2": "hunter2"}}}
		n.Status.NodeInfo = corev1.NodeSystemInfo{KernelVersion: "6.8.0", KubeletVersion: "v1.37.0", OSImage: "Ubuntu 24.04"}
		writeJSON(w, http.StatusOK, n)
	})
	c.mux.HandleFunc("POST "+pods, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		object, _, err := scheme.Codecs.UniversalDeserializer().Decode(body, nil, nil)
		p, ok := object.(*corev1.Pod)
		if !ok {
			t.Errorf("got %T, %v", object, err)
			return
		}
		p.Name = p.GenerateName + "x"
		*debugPods = append(*debugPods, fmt.Sprintf("create %s %s %s %s token=%t", p.Name, p.Spec.NodeName, p.Spec.Containers[0].Image,
			p.Spec.Volumes[0].HostPath.Path, *p.Spec.AutomountServiceAccountToken))
		writeJSON(w, http.StatusCreated, p)
	})
	c.mux.HandleFunc("GET "+pods+"/podgauge-bug-report-x", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "podgauge-bug-report-x"}, Status: corev1.PodStatus{Phase: corev1.PodRunning}})
	})
	c.mux.HandleFunc("DELETE "+pods+"/podgauge-bug-report-x", func(w http.ResponseWriter, _ *http.Request) {
		*debugPods = append(*debugPods, "delete")
		writeJSON(w, http.StatusOK, metav1.Status{Status: metav1.StatusSuccess})
	})
	return c, debugPods
}

// readBundle returns the files of an archive in order.
func readBundle(t *testing.T, path string) (names []string, contents map[string]string) {
	t.Helper()
	f, err := os.Open(path)
	require.NoError(t, err)
	defer f.Close()
	unzipped, err := gzip.NewReader(f)
	require.NoError(t, err)
	contents = map[string]string{}
	for files := tar.NewReader(unzipped); ; {
		header, err := files.Next()
		if errors.Is(err, io.EOF) {
			return names, contents
		}
		content, readErr := io.ReadAll(files)
		if err != nil || readErr != nil {
			t.Fatal(err, readErr)
		}
		names = append(names, header.Name)
		contents[filepath.Base(header.Name)] = string(content)
	}
}

// TestBundle checks that the archive begins with the summary, has all files of the GPU, and no secret.
func TestBundle(t *testing.T) {
	c, debugPods := newBundleCluster(t)
	file := filepath.Join(t.TempDir(), "rma.tar.gz")
	runInPod := func(_ context.Context, p *corev1.Pod, command []string) ([]byte, error) {
		if command[0] == "podgauge" {
			return []byte("failure  driver  no answer\n"), cli.ErrReported
		}
		if p.Name != "podgauge-bug-report-x" || !slices.Equal(command[:2], []string{"chroot", "/driver"}) {
			t.Errorf("command %q in %s", command, p.Name)
		}
		return []byte("\x1f\x8breport"), nil
	}
	args := []string{"bundle", "node-a", "1", "-o", file, "--bug-report", "--image=busybox", "--driver-root=/run/nvidia/driver"}
	out, errs, status := c.run(func(c *client) { c.runInPod = runInPod }, args...)
	if status != cli.ExitOK || errs != "" || out != file+"\n" {
		t.Fatalf("got status %d, %s%s", status, out, errs)
	}
	names, contents := readBundle(t, file)
	want := []string{"summary.md", "devices.json", "incidents.json", "allocations.json", "metrics.txt", "doctor.txt", "podgauge.log", "node-status.json", "nvidia-bug-report.log.gz"}
	for i := range want {
		want[i] = "podgauge-node-a/" + want[i]
	}
	expect.EqualSlices(t, names, want, "files")
	for name, content := range contents {
		if strings.Contains(content, "hunter2") || strings.Contains(content, "web.config.file") {
			t.Errorf("%s has a secret: %s", name, content)
		}
	}
	expect.Equal(t, contents["doctor.txt"], "failure  driver  no answer\n", "doctor with problems")
	if !strings.Contains(contents["podgauge.log"], "reason=xid_79 url=http://10.0.0.1:9400/metrics\n") || !strings.HasPrefix(contents["nvidia-bug-report.log.gz"], "\x1f\x8b") {
		t.Errorf("got %q", contents["podgauge.log"])
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if i := slices.IndexFunc(c.requests, func(r string) bool { return strings.Contains(r, api.IncidentsPath) }); !strings.Contains(c.requests[i], "device="+gpu1) {
		t.Errorf("incidents of the UUID: got %q", c.requests[i])
	}
	if strings.Contains(contents["devices.json"], gpu0) || !strings.Contains(contents["devices.json"], `"serial": "1650023000001"`) {
		t.Error(contents["devices.json"])
	}
	summary := regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ`).ReplaceAllString(contents["summary.md"], "TIME")
	testfile.CheckGolden(t, *update, "testdata/bundle_summary.md", summary)
	if want := []string{"create podgauge-bug-report-x node-a busybox /run/nvidia/driver token=false", "delete"}; !slices.Equal(*debugPods, want) {
		t.Errorf("debug pods: got %q", *debugPods)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("got %v, %v", info.Mode(), err)
	}
}

// TestBundleOfBrokenNode checks that a podgauge that hangs delays no other part, and that the archive names what is missing.
func TestBundleOfBrokenNode(t *testing.T) {
	c, _ := newBundleCluster(t)
	c.nodes["node-a"].serve = c.hang
	t.Chdir(t.TempDir())
	runInPod := func(context.Context, *corev1.Pod, []string) ([]byte, error) { return nil, errors.New("forbidden") }
	out, errs, status := c.run(func(c *client) { c.runInPod = runInPod }, "bundle", "node-a")
	file := strings.TrimSpace(out)
	if status != cli.ExitOK || strings.Count(errs, "missing: ") != 5 || !strings.HasPrefix(file, "podgauge-node-a-2") {
		t.Fatalf("got status %d, %s%s", status, out, errs)
	}
	if _, contents := readBundle(t, file); !strings.Contains(contents["summary.md"], "- missing: doctor.txt: forbidden\n") || contents["podgauge.log"] == "" {
		t.Error(contents["summary.md"])
	}
}

// TestBundleByExec checks that --exec does not use the proxy, and that the summary names what is missing.
func TestBundleByExec(t *testing.T) {
	c, _ := newBundleCluster(t)
	t.Chdir(t.TempDir())
	runInPod := func(context.Context, *corev1.Pod, []string) ([]byte, error) { return []byte("{}"), nil }
	out, errs, status := c.run(func(c *client) { c.runInPod = runInPod }, "bundle", "node-a", "--exec")
	const missing = "missing: allocations.json: not available with --exec\nmissing: metrics.txt: not available with --exec\n"
	if status != cli.ExitOK || errs != missing || len(c.requests) > 0 {
		t.Fatalf("got status %d, %s%s, requests %q", status, out, errs, c.requests)
	}
	if _, contents := readBundle(t, strings.TrimSpace(out)); !strings.Contains(contents["summary.md"], "- missing: metrics.txt: not available with --exec\n") {
		t.Error(contents["summary.md"])
	}
}

// TestBundleInterrupted checks that the debug pod is deleted after an interrupt, and that errors are one line.
func TestBundleInterrupted(t *testing.T) {
	c, debugPods := newBundleCluster(t)
	t.Chdir(t.TempDir())
	ctx, interrupt := context.WithCancel(t.Context())
	c.ctx = ctx
	runInPod := func(ctx context.Context, _ *corev1.Pod, command []string) ([]byte, error) {
		if command[0] == "chroot" {
			interrupt()
		}
		return nil, ctx.Err()
	}
	out, errs, status := c.run(func(c *client) { c.runInPod = runInPod }, "bundle", "node-a", "--bug-report", "--image=i")
	if status != cli.ExitError || out != "" || errs != "error: context canceled\n" || len(*debugPods) != 2 || (*debugPods)[1] != "delete" {
		t.Errorf("got status %d, %s%s, debug pods %q", status, out, errs, *debugPods)
	}
	c.ctx = t.Context()
	for args, want := range map[string]string{
		"bundle": "error: accepts between 1 and 2 arg(s), received 0\n", "bundle node-x": "error: node \"node-x\" has no pod of podgauge\n",
		"bundle node-a 7": "error: node-a has no device \"7\": expected one of 0 (" + gpu0 + "), 1 (" + gpu1 + ")\n", "bundle node-a --bug-report": "error: if any flags in the group [bug-report image] are set they must all be set; missing [image]\n",
		"bundle node-a -o /no/such/file": "error: open /no/such/file: no such file or directory\n",
	} {
		if out, errs, status := c.run(func(c *client) { c.runInPod = runInPod }, strings.Fields(args)...); status == cli.ExitOK || out != "" || errs != want {
			t.Errorf("%q: got status %d, %s%s", args, status, out, errs)
		}
	}
}

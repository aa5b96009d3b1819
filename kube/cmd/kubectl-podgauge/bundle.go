package main

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/podgauge/podgauge/internal/cli"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/text"
	"github.com/podgauge/podgauge/internal/web/api"
	"github.com/podgauge/podgauge/internal/xid"
	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const maxLogLines = 50000

// bundle is an archive with what podgauge and the API server know of a node,
// for a repair by the vendor. It has no environment, arguments or configs.
type bundle struct {
	node, gpu string // gpu: as in findDevice; empty: all
	file      string
	bugReport bugReport

	// found is closed when devices is set, or cannot be.
	found     chan struct{}
	id        device.ID           // of gpu; empty: unknown
	nameErr   error               // gpu names no device, or several
	devices   api.DevicesResponse // empty: unknown, as the next two
	incidents api.IncidentsResponse
	info      corev1.NodeSystemInfo
	files     []bundleFile // after the summary
}

// bundleFile is a file of the archive, or the reason why it is missing.
type bundleFile struct {
	name    string
	read    func(context.Context) ([]byte, error)
	content []byte
	err     error
}

func newBundleCommand(c *client) *cobra.Command {
	var b bundle
	command := newNodeCommand(c, "bundle NODE [GPU]",
		"Write an archive on a node, or on a GPU of the node, for a repair (RMA)",
		"  kubectl podgauge bundle node-a 3\n"+
			"  kubectl podgauge bundle node-a --bug-report --image=busybox --driver-root=/run/nvidia/driver",
		cobra.RangeArgs(1, 2),
		func(ctx context.Context, p *corev1.Pod, args []string) error {
			b.node, b.gpu = p.Spec.NodeName, strings.Join(args, "")
			return b.write(ctx, c, p)
		})
	command.Long = command.Short + ": a summary, devices,\n" +
		"incidents, allocations, metrics, doctor, logs and versions. Secrets are left out, but the report of\n" +
		"--bug-report is not filtered."
	command.PreRun = c.waitLonger
	command.Flags().StringVarP(&b.file, "output", "o", "", "`file` of the archive (default podgauge-NODE-TIME.tar.gz)")
	b.bugReport.addFlags(command.Flags())
	command.MarkFlagsRequiredTogether("bug-report", "image")
	return command
}

// write collects and writes the archive. What cannot be obtained is a line of
// the summary.
func (b *bundle) write(ctx context.Context, c *client, p *corev1.Pod) error {
	b.collect(ctx, c, p)
	if b.nameErr != nil {
		return b.nameErr
	}
	if b.bugReport.enabled {
		report, err := b.bugReport.run(ctx, c, p)
		b.files = append(b.files, bundleFile{name: "nvidia-bug-report.log.gz", content: report, err: err})
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	now := time.Now().UTC()
	file := cmp.Or(b.file, fmt.Sprintf("podgauge-%s-%s.tar.gz", b.node, now.Format("20060102T150405Z")))
	archive, err := b.archive(now, container(p).Image)
	if err == nil {
		err = os.WriteFile(file, archive, 0o600)
	}
	if err != nil {
		return err
	}
	for _, f := range b.files {
		if f.err != nil {
			fmt.Fprintf(c.streams.ErrOut, "missing: %s: %s\n", f.name, text.Printable(f.err.Error()))
		}
	}
	_, err = fmt.Fprintln(c.streams.Out, file)
	return err
}

// collect reads all files but the bug report at once: a part that hangs delays
// no other.
func (b *bundle) collect(ctx context.Context, c *client, p *corev1.Pod) {
	proxy := func(command string) func(context.Context) ([]byte, error) {
		return func(ctx context.Context) ([]byte, error) {
			if c.exec { // no command of podgauge prints these
				return nil, errors.New("not available with --exec")
			}
			return c.proxy(ctx, p, command, nil)
		}
	}
	log := func(previous bool) func(context.Context) ([]byte, error) {
		return func(ctx context.Context) ([]byte, error) {
			return c.kube.CoreV1().Pods(p.Namespace).GetLogs(p.Name, &corev1.PodLogOptions{
				Container: container(p).Name, Previous: previous, TailLines: new(int64(maxLogLines)),
				LimitBytes: new(int64(maxResponseBytes)),
			}).DoRaw(ctx)
		}
	}
	b.found = make(chan struct{})
	b.files = []bundleFile{
		{name: "devices.json", read: func(ctx context.Context) ([]byte, error) { return b.readDevices(ctx, c, p) }},
		{name: "incidents.json", read: func(ctx context.Context) ([]byte, error) { return b.readIncidents(ctx, c, p) }},
		{name: "allocations.json", read: proxy("allocations")},
		{name: "metrics.txt", read: proxy("metrics")},
		{name: "doctor.txt", read: func(ctx context.Context) ([]byte, error) {
			return c.runInPod(ctx, p, []string{"podgauge", "doctor"})
		}},
		{name: "podgauge.log", read: log(false)},
		{name: "podgauge-previous.log", read: log(true)},
		{name: "node-status.json", read: func(ctx context.Context) ([]byte, error) { return b.readNode(ctx, c) }},
	}
	var reads sync.WaitGroup
	for i := range b.files {
		f := &b.files[i]
		reads.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, c.timeout)
			defer cancel()
			content, err := f.read(ctx)
			if errors.Is(err, cli.ErrReported) { // doctor found problems
				err = nil
			}
			f.content, f.err = redact(content), err
		})
	}
	reads.Wait()
	b.files = slices.DeleteFunc(b.files, func(f bundleFile) bool { // podgauge has not restarted
		return f.err != nil && f.name == "podgauge-previous.log"
	})
}

func (b *bundle) readDevices(ctx context.Context, c *client, p *corev1.Pod) ([]byte, error) {
	defer close(b.found)
	devices, err := get[api.DevicesResponse](ctx, c, p, "status", nil)
	if err != nil {
		return nil, err
	}
	if b.gpu != "" {
		found, err := findDevice(b.node, b.gpu, devices.Devices)
		if err != nil {
			b.nameErr = err
			return nil, err
		}
		b.id = found.ID
		devices.Devices = slices.DeleteFunc(devices.Devices, func(d api.DeviceJSON) bool {
			return d.ID != b.id && d.GPU != device.GPU(b.id)
		})
	}
	b.devices = *devices
	return json.MarshalIndent(devices, "", "  ")
}

func (b *bundle) readIncidents(ctx context.Context, c *client, p *corev1.Pod) ([]byte, error) {
	query := url.Values{"limit": {strconv.Itoa(api.MaxLimit)}}
	if b.gpu != "" {
		<-b.found
		if b.id == "" {
			return nil, errors.New("the UUID of the GPU is unknown")
		}
		query.Set("device", string(b.id))
	}
	incidents, err := get[api.IncidentsResponse](ctx, c, p, "incidents", query)
	if err != nil {
		return nil, err
	}
	b.incidents = *incidents
	return json.MarshalIndent(incidents, "", "  ")
}

func (b *bundle) readNode(ctx context.Context, c *client) ([]byte, error) {
	node, err := c.kube.CoreV1().Nodes().Get(ctx, b.node, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	node.Status.Images = nil
	b.info = node.Status.NodeInfo
	return json.MarshalIndent(node.Status, "", "  ")
}

// podgauge writes no password and no token, but a log has messages of others.
var (
	secret = regexp.MustCompile(
		`(?i)((?:password|passwd|secret|token|api[_-]?key|credential)s?\\?["']?\s*[:=]\s*\\?["']?` +
			`|\b(?:bearer|basic)\s+)[^\s"',;}\\]+`)
	urlPassword = regexp.MustCompile(`(://[^/\s:@"]*):[^/\s@"]+@`)
)

func redact(content []byte) []byte {
	content = secret.ReplaceAll(content, []byte("${1}REMOVED"))
	return urlPassword.ReplaceAll(content, []byte("${1}:REMOVED@"))
}

// archive returns the files, the summary first.
func (b *bundle) archive(now time.Time, image string) ([]byte, error) {
	var archive bytes.Buffer
	zipped := gzip.NewWriter(&archive)
	files := tar.NewWriter(zipped)
	summary := bundleFile{name: "summary.md", content: redact([]byte(b.summary(now, image)))}
	var errs error
	for _, f := range append([]bundleFile{summary}, b.files...) {
		if f.err != nil {
			continue
		}
		name := "podgauge-" + b.node + "/" + f.name
		err := files.WriteHeader(&tar.Header{Name: name, Mode: 0o600, Size: int64(len(f.content)), ModTime: now})
		_, writeErr := files.Write(f.content)
		errs = errors.Join(errs, err, writeErr)
	}
	errs = errors.Join(errs, files.Close(), zipped.Close())
	return archive.Bytes(), errs
}

// summary returns the first page: what the vendor asks for.
func (b *bundle) summary(now time.Time, image string) string {
	subject := "all GPUs of node " + b.node
	if b.gpu != "" {
		subject = "GPU " + b.gpu + " of node " + b.node
	}
	devices := [][]string{{"GPU", "MODEL", "SERIAL", "VBIOS", "DRIVER", "PCI", "HEALTH", "REASON", "ACTION", "UUID"}}
	for i := range b.devices.Devices {
		d := &b.devices.Devices[i]
		devices = append(devices, []string{
			cli.DeviceNumber(d), cmp.Or(d.Profile, d.Model), d.InfoLabels["serial"], d.InfoLabels["vbios_version"],
			d.InfoLabels["driver_version"], d.PCI, d.Health, xid.Reason(d.Reason), xid.Action(d.Action), string(d.ID),
		})
	}
	var page strings.Builder
	versions := cli.FormatTable(withDashes([][]string{
		{"podgauge", image},
		{"driver", cli.DriverText(&b.devices)},
		{"kernel", b.info.KernelVersion},
		{"system", b.info.OSImage},
		{"machine", b.info.SystemUUID},
		{"kubelet", b.info.KubeletVersion},
		{"container runtime", b.info.ContainerRuntimeVersion},
	}))
	fmt.Fprintf(&page, "# %s, %s\n\nBy kubectl-podgauge %s.\n\n## Node\n\n```\n%s```\n",
		subject, now.Format(time.RFC3339), version, versions)
	fmt.Fprintf(&page, "\n## Devices\n\n```\n%s```\n\n## Incidents\n\n```\n%s```\n",
		cli.FormatTable(withDashes(devices)), cli.FormatTable(cli.IncidentTable(&b.incidents, true)))
	page.WriteString("\n## Files\n\n")
	for _, f := range b.files {
		if f.err != nil {
			f.name = "missing: " + f.name + ": " + text.Printable(f.err.Error())
		}
		page.WriteString("- " + f.name + "\n")
	}
	return page.String()
}

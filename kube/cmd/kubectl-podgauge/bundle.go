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
	"time"

	"github.com/podgauge/podgauge/internal/cli"
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
	node, gpu string // gpu: index or UUID; empty: all
	file      string
	bugReport bugReport

	devices   *api.DevicesResponse
	incidents *api.IncidentsResponse
	info      corev1.NodeSystemInfo
	names     []string // of the files, after the summary
	contents  [][]byte
	missing   []string // what could not be obtained, and why
}

func newBundleCommand(c *client) *cobra.Command {
	var b bundle
	command := &cobra.Command{
		Use: "bundle NODE [GPU]", Short: "Write an archive on a node, or on a GPU of the node, for a repair (RMA)",
		Long: "Write an archive on a node, or on a GPU of the node, for a repair (RMA): a summary, devices,\n" +
			"incidents, allocations, metrics, doctor, logs and versions. Secrets are left out.",
		Example: "  kubectl podgauge bundle node-a 3\n" +
			"  kubectl podgauge bundle node-a --bug-report --image=busybox --driver-root=/run/nvidia/driver",
		Args: cobra.RangeArgs(1, 2), PreRun: c.waitLonger,
		RunE: func(command *cobra.Command, args []string) error {
			b.node, b.gpu = args[0], strings.Join(args[1:], "")
			if err := b.bugReport.check(); err != nil {
				return err
			}
			if err := c.connect(); err != nil {
				return err
			}
			return cli.Failed(b.write(command.Context(), c))
		},
	}
	command.Flags().StringVarP(&b.file, "output", "o", "", "`file` of the archive (default podgauge-NODE-TIME.tar.gz)")
	b.bugReport.addFlags(command.Flags())
	return command
}

// write collects and writes the archive. What cannot be obtained is a line of
// the summary.
func (b *bundle) write(ctx context.Context, c *client) error {
	pods, err := c.pods(ctx)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(pods, func(p corev1.Pod) bool { return p.Spec.NodeName == b.node })
	if i < 0 {
		return fmt.Errorf("node %q has no pod of podgauge", b.node)
	}
	if err := b.collect(ctx, c, &pods[i]); err != nil {
		return err
	}
	if b.bugReport.enabled {
		report, err := b.bugReport.run(ctx, c, &pods[i])
		b.add("nvidia-bug-report.log.gz", report, err)
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	now := time.Now().UTC()
	file := cmp.Or(b.file, fmt.Sprintf("podgauge-%s-%s.tar.gz", b.node, now.Format("20060102T150405Z")))
	archive, err := b.archive(now, container(&pods[i]).Image)
	if err == nil {
		err = os.WriteFile(file, archive, 0o600)
	}
	if err == nil {
		_, err = fmt.Fprintf(c.streams.Out, "%s: %s\n", file, text.Plural(len(b.names)+1, "file"))
	}
	for _, line := range b.missing {
		fmt.Fprintln(c.streams.ErrOut, "missing: "+text.Printable(line))
	}
	return err
}

// collect adds all files but the bug report. A GPU that the node does not have
// is an error.
func (b *bundle) collect(ctx context.Context, c *client, p *corev1.Pod) (err error) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	query := url.Values{"limit": {strconv.Itoa(api.MaxLimit)}}
	if b.devices, err = get[api.DevicesResponse](ctx, c, p, "status", nil); err == nil {
		if b.gpu != "" {
			b.devices.Devices = slices.DeleteFunc(b.devices.Devices, func(d api.DeviceJSON) bool {
				return string(d.GPU) != b.gpu && string(d.ID) != b.gpu && strconv.Itoa(d.Index) != b.gpu
			})
			if len(b.devices.Devices) == 0 {
				return fmt.Errorf("node %s has no GPU %s", b.node, b.gpu)
			}
			query.Set("device", b.gpu)
		}
	} else {
		b.devices = &api.DevicesResponse{}
	}
	b.addJSON("devices.json", b.devices, err)
	if b.incidents, err = get[api.IncidentsResponse](ctx, c, p, "incidents", query); err != nil {
		b.incidents = &api.IncidentsResponse{}
	}
	b.addJSON("incidents.json", b.incidents, err)
	allocations, err := c.proxy(ctx, p, "allocations", nil)
	b.add("allocations.json", allocations, err)
	metrics, err := c.proxy(ctx, p, "metrics", nil)
	b.add("metrics.txt", metrics, err)
	doctor, err := c.runInPod(ctx, p, []string{"podgauge", "doctor"})
	b.add("doctor.txt", doctor, err)
	log, err := c.log(ctx, p, false)
	b.add("podgauge.log", log, err)
	if log, err = c.log(ctx, p, true); err == nil { // otherwise podgauge has not restarted
		b.add("podgauge-previous.log", log, nil)
	}
	node, err := c.kube.CoreV1().Nodes().Get(ctx, b.node, metav1.GetOptions{})
	if err == nil {
		node.Status.Images = nil
		b.info = node.Status.NodeInfo
	}
	b.addJSON("node-status.json", node.Status, err)
	return nil
}

// log returns the newest messages of podgauge, or of the container before the
// last restart.
func (c *client) log(ctx context.Context, p *corev1.Pod, previous bool) ([]byte, error) {
	return c.kube.CoreV1().Pods(p.Namespace).GetLogs(p.Name, &corev1.PodLogOptions{
		Container: container(p).Name, Previous: previous, TailLines: new(int64(maxLogLines)),
		LimitBytes: new(int64(maxResponseBytes)),
	}).DoRaw(ctx)
}

func (b *bundle) addJSON(name string, v any, err error) {
	content, encodeErr := json.MarshalIndent(v, "", "  ")
	b.add(name, content, cmp.Or(err, encodeErr))
}

func (b *bundle) add(name string, content []byte, err error) {
	if err != nil {
		b.missing = append(b.missing, name+": "+err.Error())
		return
	}
	if !strings.HasSuffix(name, ".gz") {
		content = redact(content)
	}
	b.names, b.contents = append(b.names, name), append(b.contents, content)
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
	names := append([]string{"summary.md"}, b.names...)
	contents := append([][]byte{redact([]byte(b.summary(now, image)))}, b.contents...)
	var errs error
	for i, name := range names {
		header := &tar.Header{
			Name: "podgauge-" + b.node + "/" + name, Mode: 0o600, Size: int64(len(contents[i])), ModTime: now,
		}
		err := files.WriteHeader(header)
		if err == nil {
			_, err = files.Write(contents[i])
		}
		errs = errors.Join(errs, err)
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
		devices = append(devices, cells(
			cli.DeviceNumber(d), cmp.Or(d.Profile, d.Model), d.InfoLabels["serial"], d.InfoLabels["vbios_version"],
			d.InfoLabels["driver_version"], d.PCI, d.Health, xid.Reason(d.Reason), xid.Action(d.Action), string(d.ID)))
	}
	var page strings.Builder
	versions := cli.FormatTable([][]string{
		cells("podgauge", image),
		cells("driver", cli.DriverText(b.devices)),
		cells("kernel", b.info.KernelVersion),
		cells("system", b.info.OSImage),
		cells("machine", b.info.SystemUUID),
		cells("kubelet", b.info.KubeletVersion),
		cells("container runtime", b.info.ContainerRuntimeVersion),
	})
	fmt.Fprintf(&page, "# %s, %s\n\nBy kubectl-podgauge %s.\n\n## Node\n\n```\n%s```\n",
		subject, now.Format(time.RFC3339), version, versions)
	fmt.Fprintf(&page, "\n## Devices\n\n```\n%s```\n\n## Incidents\n\n```\n%s```\n", cli.FormatTable(devices),
		cli.FormatTable(cli.IncidentTable(b.incidents, true)))
	fmt.Fprintf(&page, "\n## Files\n\n- %s\n", strings.Join(b.names, "\n- "))
	for _, line := range b.missing {
		fmt.Fprintf(&page, "- missing: %s\n", text.Printable(line))
	}
	return page.String()
}

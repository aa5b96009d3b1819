package app

import (
	"fmt"
	"os"

	"github.com/podgauge/podgauge/exporter"
	"github.com/podgauge/podgauge/internal/pods"
	"github.com/spf13/pflag"
)

// Where --metrics.pod-labels puts namespace, pod and container.
const (
	onDevices    = "device"
	onAllocation = "allocation"
)

// metricsOptions are the part of the command line that says what is shown, and how.
type metricsOptions struct {
	include, exclude []string
	podLabels        string
	podUID           bool
	labelsAllowlist  []string
	nvlinkLinks      bool
	dcgm             bool
	seriesLimit      int
}

func (m *metricsOptions) flags(f *pflag.FlagSet) {
	f.StringSliceVar(&m.include, "metrics.include", nil, "show the metric families that these `patterns` have, and no others: nvidia_gpu_power_*,podgauge_*")
	f.StringSliceVar(&m.exclude, "metrics.exclude", nil, "do not show the metric families that these `patterns` have")
	f.StringVar(&m.podLabels, "metrics.pod-labels", onDevices, "`where` namespace, pod and container are: on the series of the device, or, for series that outlive pods, on those of the allocation alone")
	f.BoolVar(&m.podUID, "metrics.pod-uid", false, "put the pod's UID on nvidia_gpu_allocation_info; from the kubelet's Pods API (1.37 and newer)")
	f.StringSliceVar(&m.labelsAllowlist, "metrics.labels-allowlist", nil, "put these labels of the pod on nvidia_gpu_allocation_info, `names` or beginnings of them that end in *; from the kubelet's Pods API (1.37 and newer)")
	f.BoolVar(&m.nvlinkLinks, "metrics.nvlink-links", false, "show each NVLink by itself, too: some thousand series on a node of 8 GPUs")
	f.BoolVar(&m.dcgm, "metrics.dcgm", false, "add dcgm-exporter's default families, with its names, units and labels")
	f.IntVar(&m.seriesLimit, "metrics.series-limit", exporter.DefaultSeriesLimit, "leave out what is more than this `number` of series, and say how many")
}

func (m *metricsOptions) check() error {
	if _, err := exporter.NewChoice(m.include, nil); err != nil {
		return fmt.Errorf("--metrics.include: %w", err)
	}
	if _, err := exporter.NewChoice(nil, m.exclude); err != nil {
		return fmt.Errorf("--metrics.exclude: %w", err)
	}
	if m.podLabels != onDevices && m.podLabels != onAllocation {
		return fmt.Errorf("--metrics.pod-labels %q: want %s or %s", m.podLabels, onDevices, onAllocation)
	}
	if err := pods.CheckLabels(m.labelsAllowlist); err != nil {
		return fmt.Errorf("--metrics.labels-allowlist: %w", err)
	}
	if m.seriesLimit < 1 {
		return fmt.Errorf("--metrics.series-limit %d: want 1 or more", m.seriesLimit)
	}
	return nil
}

// exporter are the options that the exporter has of it. They have been checked.
func (m *metricsOptions) exporter(hostname string) exporter.Options {
	choice, _ := exporter.NewChoice(m.include, m.exclude)
	return exporter.Options{
		Choice: choice, StableSeries: m.podLabels == onAllocation, PodUID: m.podUID, SeriesLimit: m.seriesLimit,
		DCGM: m.dcgm, Hostname: hostname,
	}
}

// hostname is the node's, as dcgm-exporter has it: NODE_NAME, which a DaemonSet's manifest
// sets, or else the machine's, which in a pod is the pod's own.
func hostname(lookupEnv lookup) string {
	if name, ok := lookupEnv("NODE_NAME"); ok && name != "" {
		return name
	}
	name, err := os.Hostname()
	if err != nil {
		return ""
	}
	return name
}

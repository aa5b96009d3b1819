package app

import (
	"fmt"

	"github.com/podgauge/podgauge/exporter"
	"github.com/podgauge/podgauge/internal/pods"
	"github.com/spf13/pflag"
)

// Values of --metrics.pod-labels: the series that have the labels namespace, pod and container.
const (
	podLabelsOnDevice     = "device"
	podLabelsOnAllocation = "allocation"
)

// metricsOptions are the flags of the metrics.
type metricsOptions struct {
	include, exclude []string
	podLabels        string
	podUID           bool
	labelsAllowlist  []string
	perNVLink        bool
	dcgm             bool
	seriesLimit      int
}

func (o *metricsOptions) addFlags(f *pflag.FlagSet) {
	f.StringSliceVar(&o.include, "metrics.include", nil, "show the metric families that these `patterns` have, and no others: nvidia_gpu_power_*,podgauge_*")
	f.StringSliceVar(&o.exclude, "metrics.exclude", nil, "do not show the metric families that these `patterns` have")
	f.StringVar(&o.podLabels, "metrics.pod-labels", podLabelsOnDevice, "`where` namespace, pod and container are: on the series of the device, or, for series that outlive pods, on those of the allocation alone")
	f.BoolVar(&o.podUID, "metrics.pod-uid", false, "put the pod's UID on nvidia_gpu_allocation_info; from the kubelet's Pods API (1.37 and newer)")
	f.StringSliceVar(&o.labelsAllowlist, "metrics.labels-allowlist", nil, "put these labels of the pod on nvidia_gpu_allocation_info, `names` or beginnings of them that end in *; from the kubelet's Pods API (1.37 and newer)")
	f.BoolVar(&o.perNVLink, "metrics.nvlink-links", false, "show each NVLink by itself, too: some thousand series on a node of 8 GPUs")
	f.BoolVar(&o.dcgm, "metrics.dcgm", false, "add dcgm-exporter's default families, with its names, units and labels")
	f.IntVar(&o.seriesLimit, "metrics.series-limit", exporter.DefaultSeriesLimit, "leave out what is more than this `number` of series, and say how many")
}

func (o *metricsOptions) check() error {
	if _, err := exporter.NewFamilyFilter(o.include, nil); err != nil {
		return fmt.Errorf("--metrics.include: %w", err)
	}
	if _, err := exporter.NewFamilyFilter(nil, o.exclude); err != nil {
		return fmt.Errorf("--metrics.exclude: %w", err)
	}
	if o.podLabels != podLabelsOnDevice && o.podLabels != podLabelsOnAllocation {
		return fmt.Errorf("--metrics.pod-labels %q: want %s or %s", o.podLabels, podLabelsOnDevice, podLabelsOnAllocation)
	}
	if err := pods.ValidateLabels(o.labelsAllowlist); err != nil {
		return fmt.Errorf("--metrics.labels-allowlist: %w", err)
	}
	if o.seriesLimit < 1 {
		return fmt.Errorf("--metrics.series-limit %d: want 1 or more", o.seriesLimit)
	}
	return nil
}

// exporterOptions returns the exporter's options. The flags have been checked.
func (o *metricsOptions) exporterOptions(hostname string) exporter.Options {
	filter, _ := exporter.NewFamilyFilter(o.include, o.exclude)
	return exporter.Options{
		Filter: filter, StableSeries: o.podLabels == podLabelsOnAllocation, PodUID: o.podUID, SeriesLimit: o.seriesLimit,
		DCGM: o.dcgm, Hostname: hostname,
	}
}

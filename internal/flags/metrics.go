package flags

import (
	"fmt"
	"slices"

	"github.com/podgauge/podgauge/exporter"
	"github.com/podgauge/podgauge/internal/allocation"
	"github.com/podgauge/podgauge/internal/config"
	"github.com/podgauge/podgauge/internal/dcgm"
	"github.com/podgauge/podgauge/internal/pods"
	"github.com/spf13/pflag"
)

// Values of --metrics.pod-labels: the series with the labels namespace, pod and
// container.
const (
	podLabelsOnDevice     = "device"
	podLabelsOnAllocation = "allocation"
)

// Metrics are the flags of the metrics.
type Metrics struct {
	exporter.Options // check sets Filter and StableSeries
	set              string
	include, exclude []string
	podLabels        string
	LabelsAllowlist  []string
	JobMappingDir    string
	PerNVLink        bool
	RDMA, CPU        bool
	SysfsDir         string
	dcgm             string
	DCGMCountersFile string
}

func (o *Metrics) addFlags(f *pflag.FlagSet) {
	f.StringVar(&o.set, "metrics.set", "default",
		"export this `set` of metric families: minimal (for alerts on health and for recording rules), "+
			"default (for all alerts and dashboards), full or none")
	f.StringSliceVar(&o.include, "metrics.include", nil,
		"export metric families matching these `patterns` as well: nvidia_gpu_power_*,podgauge_*")
	f.StringSliceVar(&o.exclude, "metrics.exclude", nil, "omit metric families matching these `patterns`")
	f.StringVar(&o.podLabels, "metrics.pod-labels", podLabelsOnDevice,
		"`series` with namespace, pod and container: device, or allocation (device series then outlive pods)")
	f.BoolVar(&o.PodUID, "metrics.pod-uid", false,
		"add the pod's UID to nvidia_gpu_allocation_info; needs the kubelet's Pods API "+
			"(1.37 and newer) or --pods-api-fallback-socket")
	f.StringSliceVar(&o.LabelsAllowlist, "metrics.labels-allowlist", nil,
		"add these pod labels to nvidia_gpu_allocation_info, `names` or prefixes with *; "+
			"needs the kubelet's Pods API (1.37 and newer) or --pods-api-fallback-socket")
	f.StringVar(&o.JobMappingDir, "job-mapping-dir", "",
		"`folder` with the ids of HPC jobs, such as Slurm's, in a file for each GPU; adds the label hpc_job to "+
			"nvidia_gpu_allocation_info (dcgm-exporter's --hpc-job-mapping-dir)")
	f.StringVar(&o.JobLabel, "job-label", "",
		"`label` of pods with the id of their HPC job, for the label hpc_job: "+allocation.SlurmJobLabel+
			" with Slinky's slurm-bridge; needs the kubelet's Pods API (1.37 and newer) or --pods-api-fallback-socket")
	f.BoolVar(&o.PerNVLink, "metrics.nvlink-links", false,
		"export each NVLink as well: about 900 more series on a node with 8 H100")
	f.BoolVar(&o.RDMA, "metrics.rdma", false,
		"export the ports of RDMA devices, with the pod that has the device by any device plugin or DRA driver; "+
			"counters need the sysfs of the node's network namespace (--path.sysfs)")
	f.BoolVar(&o.CPU, "metrics.cpu", false, "export power and temperatures of CPU sockets (NVIDIA Grace)")
	f.StringVar(&o.SysfsDir, "path.sysfs", "/sys", "`folder` of sysfs, for --metrics.rdma and --metrics.cpu")
	f.StringVar(&o.dcgm, "metrics.dcgm", "",
		"add dcgm-exporter's default families, with the names, units and labels of a `version` of dcgm-exporter, "+
			"given with =: 4.8 (and older), 4.9 (and newer) or both; without a value, 4.8")
	f.Lookup("metrics.dcgm").NoOptDefVal = "4.8"
	f.StringVar(&o.DCGMCountersFile, "metrics.dcgm-counters", "",
		"add the families in this counters `file` of dcgm-exporter (CSV), in place of the default families")
	f.IntVar(&o.SeriesLimit, "metrics.series-limit", exporter.DefaultSeriesLimit,
		"omit series above this `number`, and export the count of omitted series")
}

func (o *Metrics) check() (err error) {
	include, exclude := slices.Clone(o.include), slices.Clone(o.exclude)
	if err := o.checkDCGM(); err != nil {
		return fmt.Errorf("--metrics.dcgm %w", err)
	}
	for _, f := range o.DCGM.Families {
		include = append(include, f.Name)
	}
	if o.PerNVLink {
		include = append(include, perLinkFamilies...)
	} else { // they are read for dcgm-exporter's families
		exclude = append(exclude, perLinkFamilies...)
	}
	if o.RDMA || o.CPU {
		include = append(include, "podgauge_rdma_*", "podgauge_cpu_*")
	}
	if _, err := exporter.NewFamilyFilter(o.set, nil, nil); err != nil {
		return fmt.Errorf("--metrics.set: %w", err)
	}
	if o.Filter, err = exporter.NewFamilyFilter(o.set, include, exclude); err != nil {
		return fmt.Errorf("--metrics.include, --metrics.exclude: %w", err)
	}
	if o.podLabels != podLabelsOnDevice && o.podLabels != podLabelsOnAllocation {
		return fmt.Errorf("--metrics.pod-labels %q: expected %s or %s",
			o.podLabels, podLabelsOnDevice, podLabelsOnAllocation)
	}
	o.HPCJobs = o.JobMappingDir != "" || o.JobLabel != ""
	o.StableSeries = o.podLabels == podLabelsOnAllocation
	if err := pods.ValidateLabels(o.LabelsAllowlist); err != nil {
		return fmt.Errorf("--metrics.labels-allowlist: %w", err)
	}
	if o.SeriesLimit < 1 {
		return fmt.Errorf("--metrics.series-limit %d: expected at least 1", o.SeriesLimit)
	}
	return nil
}

var perLinkFamilies = []string{"nvidia_gpu_nvlink_link_*", "nvidia_gpu_nvlink_up"}

// ReadsNVLinks reports whether single NVLinks are read.
func (o *Metrics) ReadsNVLinks() bool { return o.PerNVLink || o.DCGM.PerLink() }

// checkDCGM sets the families of dcgm-exporter. A counters file that cannot be read leaves the default families.
func (o *Metrics) checkDCGM() error {
	generations, err := dcgm.ParseGenerations(o.dcgm)
	if err != nil {
		return err
	}
	o.DCGM = dcgm.Defaults(generations...)
	if o.DCGMCountersFile == "" {
		return nil
	}
	text, err := config.ReadFile(o.DCGMCountersFile)
	if err != nil {
		o.DCGM.Errors = []error{err}
		return nil
	}
	o.DCGM = dcgm.Parse(o.DCGMCountersFile, text, generations...)
	return nil
}

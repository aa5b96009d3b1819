package exporter

import (
	"context"
	"slices"

	"github.com/podgauge/podgauge/internal/allocation"
	"github.com/podgauge/podgauge/internal/dcgm"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/health"
	"github.com/podgauge/podgauge/internal/node"
	"github.com/podgauge/podgauge/internal/sysfs"
	"github.com/podgauge/podgauge/internal/web/status"
)

// Sources are the parts of the process read by the exporter.
type Sources struct {
	Metrics   []device.Metric // the rows of readings
	State     *node.State
	Readers   GPUReaders
	Processes ProcessResolver
	// ListAllocations asks the kubelet for the allocations, until ctx is done.
	ListAllocations func(ctx context.Context) allocation.Snapshot
	Sysfs           *sysfs.Reader // RDMA ports and CPU sensors; nil: not read
}

// GPUReaders reads GPUs. *health.Readers implements it.
type GPUReaders interface {
	// Read reads all GPUs, with their processes if set, until ctx is done.
	Read(ctx context.Context, gpus []device.GPU, processes bool) []health.Reading
	// ReadOne reads one GPU, also during a Read.
	ReadOne(ctx context.Context, gpu device.GPU) health.Reading
	// Stalled reports whether a call to the GPU hangs.
	Stalled(gpu device.GPU) bool
}

// ProcessResolver finds the containers of processes. Calls do not overlap.
type ProcessResolver interface {
	// Visible reports whether processes can be looked up.
	Visible() bool
	// Owner returns the owner in whose container the process runs; false if the process runs in none of the containers.
	Owner(pid uint32, owners []allocation.Owner) (allocation.Owner, bool)
	// Sweep ends a collection: answers may be kept until then.
	Sweep()
}

// DefaultSeriesLimit is twice the number of series of a node with 16 GPUs and all options on.
const DefaultSeriesLimit = 20000

// Options select the exported families, series and labels.
type Options struct {
	Filter FamilyFilter
	// StableSeries leaves owner labels off all series but
	// nvidia_gpu_allocation_info and _ratio, so that no series ends or begins with a pod.
	// Counters then are the driver's own.
	StableSeries bool
	// PodUID adds the pod's UID to nvidia_gpu_allocation_info.
	PodUID bool
	// HPCJobs adds the ids of HPC jobs to nvidia_gpu_allocation_info, from the
	// mapping files, otherwise from the pod's JobLabel.
	HPCJobs  bool
	JobLabel string
	// SeriesLimit bounds the series of a scrape, podgauge's own metrics excepted; 0: DefaultSeriesLimit.
	SeriesLimit int
	// DCGM adds families of dcgm-exporter, with its names, units and labels. Hostname is one of the labels.
	DCGM     dcgm.Counters
	Hostname string
}

// Reads reports whether a row is exported, also as a family of dcgm-exporter, or shown on the status page.
func (o *Options) Reads(m *device.Metric) bool {
	return o.Filter.MatchesRow(m) || slices.Contains(status.Quantities, status.Quantity(m.RowName())) ||
		o.DCGM.Reads(m.Selector())
}

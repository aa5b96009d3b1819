package exporter

import (
	"context"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/web/api"
	"github.com/podgauge/podgauge/internal/web/status"
)

// Sources are the parts of the process that the exporter reads.
type Sources struct {
	Metrics   []device.Metric // the rows of readings
	Node      Node
	Readers   GPUReaders
	Processes ProcessResolver
}

// Node returns the state of the node. Only ListAllocations may wait.
type Node interface {
	api.NodeState
	// ListAllocations asks the kubelet for the allocations, until ctx is done.
	ListAllocations(ctx context.Context) device.Allocations
	// PodMeta returns the metadata of a pod as far as known.
	PodMeta(namespace, pod string) device.PodMeta
	// PluginResources and PodsAPI are those of the page.
	PluginResources() []status.PluginResource
	PodsAPI() status.PodsAPIStatus
	// HealthStore reports whether devices' health is stored on disk, and the error if the store failed.
	HealthStore() (used bool, err error)
}

// GPUReaders reads GPUs. *device.Readers implements it.
type GPUReaders interface {
	// Read reads all GPUs until ctx is done.
	Read(ctx context.Context, gpus []device.GPU) []device.Reading
	// ReadOne reads one GPU, also during a Read.
	ReadOne(ctx context.Context, gpu device.GPU) device.Reading
	// Stalled reports whether a call to the GPU has not returned.
	Stalled(gpu device.GPU) bool
}

// ProcessResolver finds the containers of processes. Only one goroutine calls it at a time.
type ProcessResolver interface {
	// Visible reports whether processes can be looked up.
	Visible() bool
	// Owner returns the owner in whose container the process runs; false if it runs in none of them.
	Owner(pid uint32, owners []device.Owner) (device.Owner, bool)
	// Sweep ends a collection: processes that no Owner call named since the previous Sweep may be forgotten.
	Sweep()
}

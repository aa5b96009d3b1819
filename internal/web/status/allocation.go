package status

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/web/api"
)

// Limits per device.
const (
	maxOwners   = 16
	maxReplicas = 128
)

// replicaList has the replicas of a shared device.
type replicaList struct {
	Sharing          string
	Allocated, Total int
	Boxes            []replicaBox // at most maxReplicas
	Complete         bool         // replicas without an owner are unallocated
}

type replicaBox struct {
	Number    string
	Allocated bool
}

// replicas returns listed replicas, and allocated replicas no longer listed; nil
// for a device without replicas.
func (d *nodeData) replicas(id device.ID) *replicaList {
	list := replicaList{Complete: d.Allocations.Complete}
	isAllocated := map[string]bool{} // by number
	for _, resource := range d.Resources {
		if resource.Sharing == "" {
			continue
		}
		for _, listed := range resource.IDs {
			if listed.Device() == id {
				list.Sharing = resource.Sharing
				isAllocated[replicaNumber(listed)] = false
			}
		}
	}
	for _, row := range d.Allocations.ForDevice(id) {
		if n := replicaNumber(row.DeviceID); n != "" {
			isAllocated[n] = true
		}
	}
	for _, n := range slices.SortedFunc(maps.Keys(isAllocated), compareNumbers) {
		if isAllocated[n] {
			list.Allocated++
		}
		list.Boxes = append(list.Boxes, replicaBox{n, isAllocated[n]})
	}
	if list.Total = len(list.Boxes); list.Total == 0 {
		return nil
	}
	list.Boxes = limit(list.Boxes, maxReplicas).First
	return &list
}

// replicaNumber returns the number of a replica; empty for a device.
func replicaNumber(id device.AdvertisedID) string {
	_, n, _ := strings.Cut(string(id), "::")
	return n
}

func compareNumbers(a, b string) int {
	return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b))
}

// replicasOf returns "replicas 2, 3" of an owner; empty without one.
func replicasOf(owner api.OwnerJSON) string {
	var numbers []string
	for _, resource := range owner.Resources {
		if n := replicaNumber(resource.ID); n != "" {
			numbers = append(numbers, n)
		}
	}
	slices.SortFunc(numbers, compareNumbers)
	switch len(numbers) {
	case 0:
		return ""
	case 1:
		return "replica " + numbers[0]
	}
	return "replicas " + strings.Join(numbers, ", ")
}

var allocationTexts = map[string]string{
	"unallocated": "unallocated",
	"unnamed":     "allocated to a container that the kubelet does not name",
	"unknown":     "allocation not known yet",
	"partitioned": "allocatable as MIG devices",
}

// allocationText describes the allocation of a device without an owner.
func allocationText(d *api.DeviceJSON) string {
	if d.AllocationState == "unallocated" && !d.Healthy {
		return "cannot be allocated"
	}
	return allocationTexts[d.AllocationState]
}

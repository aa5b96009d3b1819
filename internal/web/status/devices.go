package status

import (
	"cmp"
	"slices"
	"strconv"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/incident"
	"github.com/podgauge/podgauge/internal/web/api"
)

// deviceCard is a GPU or a MIG device.
type deviceCard struct {
	Device             *api.DeviceJSON
	Anchor             string
	Name, ShortName    string // "GPU 3, MIG device 1", "1"
	Health             string // or "gone"
	Meaning            string // explains Health
	LastFault          *lastFault
	FaultOfGPU         bool // a MIG device: the fault is shown at the GPU
	FaultyMIGDevices   int  // with FaultOfGPU
	Use, Memory, Power *usageBar
	Replicas           *replicaList // nil without replicas
	Owners             limited[api.OwnerJSON]
	Allocation         string // without an owner
	Shown              bool   // by the filter

	states  []string // filterStates
	urgency int      // the worst first
}

var healthMeanings = map[string]string{
	"suspect":    "A fault was reported. Checks are running; the device remains allocatable.",
	"recovering": "The fault is gone. The device becomes healthy after further checks pass.",
	"gone":       "No longer listed by the driver.",
}

func (d *nodeData) deviceCard(of *api.DeviceJSON) *deviceCard {
	index := strconv.Itoa(of.Index)
	card := &deviceCard{
		Device:    of,
		Anchor:    "gpu-" + index,
		Name:      "GPU " + index,
		ShortName: index,
		Health:    of.Health,
		Replicas:  d.replicas(of.ID),
		Owners:    limit(of.Owners, maxOwners),
		states:    []string{of.Health},
		urgency:   slices.Index(filterStates, of.Health),
	}
	switch {
	case of.IsAllocated():
		card.states = append(card.states, "allocated")
	case of.Healthy && of.AllocationState == "unallocated":
		card.states = append(card.states, "unallocated")
	}
	if of.IsMIGDevice() {
		card.ShortName = of.MIGNumber()
		card.Name += ", MIG device " + card.ShortName
		card.Anchor += "-" + card.ShortName
	}
	if of.Gone {
		card.Health = "gone"
	}
	card.Meaning = cmp.Or(of.Note, healthMeanings[card.Health])
	if card.isUnhealthy() {
		card.LastFault = d.lastFault(of)
	}
	if card.Replicas != nil {
		card.Owners = limit(of.Owners, maxReplicas)
	}
	if card.Replicas == nil || !d.Allocations.Complete {
		card.Allocation = allocationText(of)
	}
	bars := d.usageBars(of.ID, card.Name)
	card.Use, card.Memory, card.Power = bars[useMeasure], bars[memoryMeasure], bars[powerMeasure]
	return card
}

// ExplainsHealth reports whether the page explains the health at this device:
// once for each fault.
func (c *deviceCard) ExplainsHealth() bool {
	return !c.FaultOfGPU && (c.Device.Reason != "" || c.Meaning != "" || c.LastFault != nil)
}

// isUnhealthy reports whether the device is in any other state than healthy.
func (c *deviceCard) isUnhealthy() bool { return c.Device.Health != device.Healthy.String() }

// matches reports whether the filter selects the device: by state, and by a pod
// with the device, or affected by the incident shown with the device.
func (c *deviceCard) matches(f filter) bool {
	if f.State != "" && !slices.Contains(c.states, f.State) {
		return false
	}
	owns := func(o api.OwnerJSON) bool { return f.matchesOwner(o.Owner) }
	return f.Pod == "" || slices.ContainsFunc(c.Device.Owners, owns) ||
		c.LastFault != nil && f.affects(c.LastFault.Affected)
}

// lastFault is the last incident of a device that is not healthy.
type lastFault struct {
	*incident.Incident
	Affected []incident.AffectedContainer // with the MIG device, or with any device of the GPU
}

// lastFault returns the incident that made a device unhealthy, or the newest
// incident; nil without incidents.
func (d *nodeData) lastFault(of *api.DeviceJSON) *lastFault {
	var found []*incident.Incident
	for n := range d.Incidents.Incidents {
		i := &d.Incidents.Incidents[n]
		isOpen := i.MarkedUnhealthy && i.RecoveredAt == nil && i.Reason == of.Reason
		if isOpen && i.GPU == of.GPU && (!of.IsMIGDevice() || i.Concerns(of.ID)) {
			found = append(found, i)
		}
	}
	if len(found) == 0 && of.LastIncident != nil {
		found = append(found, of.LastIncident)
	}
	if len(found) == 0 {
		return nil
	}
	last := &lastFault{Incident: found[0]}
	for _, i := range found {
		for _, c := range i.Affected {
			if !of.IsMIGDevice() || i.DeviceOf(c) == of.ID {
				last.Affected = append(last.Affected, c)
			}
		}
	}
	return last
}

// firstContainers returns at most maxOwners containers, each once.
func firstContainers(all []incident.AffectedContainer) limited[incident.AffectedContainer] {
	return limit(incident.UniqueOwners(all), maxOwners)
}

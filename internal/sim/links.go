package sim

import (
	"context"
	"fmt"

	"github.com/podgauge/podgauge/internal/device"
)

// SetLinks says how A is connected to B, as A sees it. Otherwise those of a model are
// connected as on their board: over NVSwitches, where they have NVLinks, in two NUMA
// nodes.
func (m *Machine) SetLinks(links ...device.Link) {
	m.update(func() {
		for _, l := range links {
			m.links[[2]device.GPU{l.A, l.B}] = l
		}
	})
}

// Links are those of the GPUs that have not been removed.
func (m *Machine) Links(context.Context) ([]device.Link, error) {
	m.beginCall(neverHung)
	defer m.endCall()
	m.linkReads++
	if m.driverErr != nil || m.closed {
		return nil, device.ErrNoDriver
	}
	links := []device.Link{}
	var lostErr error
	for _, a := range m.gpus {
		if !a.removed && a.fault != nil {
			lostErr = fmt.Errorf("%s: %w", a.GPU, a.fault)
		}
		for _, b := range m.gpus {
			if a != b && !a.removed && !b.removed && a.fault == nil {
				links = append(links, m.linkBetween(a, b))
			}
		}
	}
	return links, lostErr
}

// LinkReads counts how often the links were read.
func (m *Machine) LinkReads() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.linkReads
}

func (m *Machine) linkBetween(a, b *simGPU) device.Link {
	if l, ok := m.links[[2]device.GPU{a.GPU, b.GPU}]; ok {
		return l
	}
	path := device.PathSystem
	if a.NUMANode == b.NUMANode {
		path = device.PathNUMANode
	}
	nvlinks := 0
	if a.model == b.model {
		nvlinks = a.model.nvlinks
	}
	return device.Link{A: a.GPU, B: b.GPU, NVLinks: nvlinks, Path: path}
}

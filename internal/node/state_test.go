package node_test

import (
	"errors"
	"testing"

	"github.com/podgauge/podgauge/internal/config"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/incident"
	"github.com/podgauge/podgauge/internal/node"
	"github.com/podgauge/podgauge/internal/pods"
	"github.com/podgauge/podgauge/internal/state"
	"github.com/podgauge/podgauge/test/helpers/expect"
)

func TestTerminationsNeedSync(t *testing.T) {
	var s node.State
	lookup, changed := s.Terminations()
	if lookup != nil {
		t.Error("without synced pods: got a lookup")
	}
	s.Pods.Set(pods.NewPods())
	<-changed
	if lookup, _ := s.Terminations(); lookup == nil {
		t.Error("with synced pods: got no lookup")
	}
}

func TestStoredIncidents(t *testing.T) {
	var s node.State
	s.Incidents.Set(incident.Snapshot{Incidents: make([]incident.Incident, 1)})
	for _, row := range []struct {
		file      state.WriteStatus
		persisted bool
	}{
		{state.WriteStatus{}, false},
		{state.WriteStatus{Used: true}, true},
		{state.WriteStatus{Used: true, Err: errors.New("disk full")}, false},
	} {
		s.StateFile.Set(row.file)
		got := s.StoredIncidents()
		if got.Persisted != row.persisted || !errors.Is(got.Err, row.file.Err) || len(got.Incidents) != 1 {
			t.Errorf("%+v: got %+v", row.file, got)
		}
	}
}

// TestExcluded checks that the device filter is one of the device plugin.
func TestExcluded(t *testing.T) {
	const id = "GPU-3b5c6c1e-0f6d-4c6a-9d4e-8a1f2b3c4d50"
	excluded := device.Device{ID: id, GPU: id}
	settings := config.Settings{}
	settings.DeviceFilter.Exclude = []config.DeviceSelector{id}
	for _, isPlugin := range []bool{false, true} {
		s := node.State{IsPlugin: isPlugin}
		s.Settings.Set(settings)
		expect.Equal(t, s.Excluded(excluded), isPlugin, "plugin", isPlugin)
	}
}

package main

import (
	"testing"

	"github.com/podgauge/podgauge/device"
)

func TestOnlyWholeGPUsAreOffered(t *testing.T) {
	board := &device.Board{}
	look := wholeGPUs(board.Look)
	if statuses, _ := look(); statuses != nil {
		t.Errorf("before the first verdict there is %v", statuses)
	}
	board.Post([]device.Status{
		{Device: device.Device{ID: "GPU-0", GPU: "GPU-0"}},
		{Device: device.Device{ID: "GPU-1", GPU: "GPU-1", MIG: true}},
		{Device: device.Device{ID: "MIG-1", GPU: "GPU-1"}},
	})
	if statuses, _ := look(); len(statuses) != 1 || statuses[0].ID != "GPU-0" {
		t.Errorf("offered are %+v", statuses)
	}
	board.Post(nil)
	if statuses, _ := look(); statuses == nil || len(statuses) != 0 {
		t.Errorf("of no device are offered %+v", statuses)
	}
}

package main

import "github.com/podgauge/podgauge/device"

// wholeGPUs looks at the devices that are offered as nvidia.com/gpu: GPUs whose MIG
// mode is off. One in MIG mode cannot be held, and its slices have no resource yet.
func wholeGPUs(look func() ([]device.Status, <-chan struct{})) func() ([]device.Status, <-chan struct{}) {
	return func() ([]device.Status, <-chan struct{}) {
		statuses, changed := look()
		if statuses == nil {
			return nil, changed
		}
		whole := make([]device.Status, 0, len(statuses))
		for _, s := range statuses {
			if s.WholeGPU() && !s.MIG {
				whole = append(whole, s)
			}
		}
		return whole, changed
	}
}

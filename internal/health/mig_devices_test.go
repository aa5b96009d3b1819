package health_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/sim"
	"github.com/podgauge/podgauge/test/bubble"
	"github.com/podgauge/podgauge/test/helpers/require"
)

// deviceIDs returns the ids of statuses, in order.
func deviceIDs(statuses []device.Status) []device.ID {
	list := []device.ID{}
	for _, s := range statuses {
		list = append(list, s.ID)
	}
	return list
}

func TestMIGLayouts(t *testing.T) {
	runScenarios(t, []scenario{
		{"by the driver's event, before the next listing", 2, `1s; partition g0 1g.10gb 2g.20gb; 1ms: - - - -
			profile - 1g.10gb 2g.20gb -; unpartition g0; 1ms: - gone gone -; 1m: - -`},
		// The running listing misses the change, and another one follows.
		{"during a listing", 1, `slow 1s; start; 11500ms; partition g0 1g.10gb; 600ms: -; 1s: - -`},
		// A MIG device that is gone stays for ten seconds, and while it is
		// allocated.
		{"gone MIG devices", 1, `partition g0 1g.10gb 1g.10gb 1g.10gb; start; 1s; allocate d1
			partition g0 - - 1g.10gb; 1ms: - gone gone -; 9s: - gone gone -; 2s: - gone -; gone - gone -
			20m: - gone -; fail g0 xid 79; 1s: xid_79 xid_79 xid_79; gone - gone -; free; 1s: xid_79 xid_79; gone - -`},
		// A GPU that is gone stays longer: it may have fallen off the bus.
		{"gone GPUs", 2, `partition g0 1g.10gb; start; 1s; remove g0; 10s: lost lost -; 10s: lost -; 9m: lost -; 1m: -
			remove g1; 11m:; reset g1; 15s: -`},
		// One warning, for any number of MIG devices.
		{"a GPU that is not listed", 2, `partition g1 1g.10gb 1g.10gb 1g.10gb; start; 11s; remove g1; 1m
			log 1 WARN GPU lost: no longer listed by the driver; log 0 MIG device gone`},
		{"a GPU that falls off the bus", 2, `partition g1 1g.10gb 1g.10gb 1g.10gb; start; 11s; fail g1 lost; 1m
			log 1 WARN GPU lost: fallen off the bus; log 0 MIG device gone`},
		{"a GPU that is not listed after an Xid", 2, `partition g1 1g.10gb 1g.10gb; start; 11s; fail g1 xid 79; 1s
			remove g1
			1m; log 1 WARN GPU lost: no longer listed by the driver; log 0 MIG device gone`},
	})
}

// FuzzAffectedDevices compares faults, resets and MIG layouts in any order with
// a model: a GPU's fault affects all its MIG devices, and a MIG device's fault
// only that device.
func FuzzAffectedDevices(f *testing.F) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 8 {
		script := make([]byte, 30)
		for i := range script {
			script[i] = byte(random.IntN(256))
		}
		f.Add(script)
	}
	f.Fuzz(func(t *testing.T, script []byte) {
		if len(script) > 60 { // each step takes simulated minutes
			script = script[:60]
		}
		bubble.Test(t, func(t *testing.T) { runPartitionScript(t, script) })
	})
}

// expectedReasons is the model: the reasons of GPUs and MIG devices that wait
// for a reset.
type expectedReasons struct {
	gpus       map[device.GPU]string
	migDevices map[device.ID]string
}

var partitionLayouts = [][]string{
	{"1g.10gb", "1g.10gb"},
	{"1c.3g.40gb", "2c.3g.40gb", "1g.10gb"},
	{"7g.80gb"},
	{},
	{"1g.10gb", "", "1g.10gb"},
}

func runPartitionScript(t *testing.T, script []byte) {
	m := newMachine(2)
	w := startMonitor(t, m, nil)
	defer w.stop()
	expect := expectedReasons{gpus: map[device.GPU]string{}, migDevices: map[device.ID]string{}}
	w.statusesAfter(time.Second)
	for step := 0; step+1 < len(script); step += 2 {
		action, arg := script[step]%6, int(script[step+1])
		gpu := m.GPUs()[arg%2]
		devices, err := m.Devices(t.Context())
		require.NoError(t, err)
		d := devices[arg%len(devices)]
		pause := 30 * time.Second
		first := func(name string) string { return firstNonEmpty(expect.gpus[d.GPU], name) }
		switch action {
		case 0:
			m.Partition(gpu, partitionLayouts[arg%len(partitionLayouts)]...)
		case 1:
			m.Unpartition(gpu)
		case 2:
			m.Fail(d.ID, "xid 31")
		case 3:
			m.Fail(d.ID, "xid 999")
			if d.WholeGPU() {
				expect.gpus[d.GPU] = first("xid_999")
			} else {
				expect.migDevices[d.ID] = firstNonEmpty(expect.migDevices[d.ID], "xid_999")
			}
		case 4:
			m.Fail(d.ID, "xid 95")
			expect.gpus[d.GPU] = first("xid_95")
		case 5:
			m.ResetGPU(d.ID)
			pause = 11 * time.Minute // the recovery period may be long
			delete(expect.gpus, d.GPU)
			for _, s := range devices {
				if s.GPU == d.GPU {
					delete(expect.migDevices, s.ID)
				}
			}
		}
		expect.compare(t, fmt.Sprintf("step %d, %d of %s", step/2, action, d.ID), m, w.statusesAfter(pause))
	}
}

func firstNonEmpty(text, other string) string {
	if text != "" {
		return text
	}
	return other
}

func (e expectedReasons) compare(t *testing.T, when string, m *sim.Machine, statuses []device.Status) {
	t.Helper()
	devices, err := m.Devices(t.Context())
	if err != nil || len(devices) != len(statuses) {
		t.Fatalf("%s: got devices %v, want %d, error %v", when, deviceIDs(statuses), len(devices), err)
	}
	for i, d := range devices {
		reason := e.gpus[d.GPU]
		if reason == "" {
			reason = e.migDevices[d.ID]
		}
		if s := statuses[i]; s.ID != d.ID || s.Reason != reason || s.Healthy != (reason == "") {
			t.Fatalf("%s: got %s %q, want %s %q", when, s.ID, s.Reason, d.ID, reason)
		}
	}
}

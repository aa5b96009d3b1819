package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"reflect"
	"testing"
	"time"

	"github.com/podgauge/podgauge/test/e2e/node"
)

// What podgauge answers in JSON, as far as tests look at it: by the names of docs/reference/api.md, which are a contract.
type (
	// apiIncident is what happened to a device.
	apiIncident struct {
		ID                uint64
		First, Last       time.Time
		Count             uint64
		Device, GPU       string
		Reason            string
		Xid               int
		Class, Action     string
		MarkedUnhealthy   bool                   `json:"marked_unhealthy"`
		RecoveredAt       time.Time              `json:"recovered"`
		Containers        []apiAffectedContainer `json:"affected"`
		OwnerUnnamed      bool                   `json:"owners_incomplete"`
		ContainersUnknown bool                   `json:"affected_unknown"`
	}
	// apiAffectedContainer is a container that had the device.
	apiAffectedContainer struct {
		Namespace, Pod, Container string
		UID                       string
		Since, Until              time.Time
		Ended                     *struct {
			Phase, Reason string
			ExitCode      *int `json:"exit_code"`
		}
	}
	// apiDevice is how a device is.
	apiDevice struct {
		Device, Health, Reason, Action string
		Allocation                     string
		Healthy                        bool
		Flaps                          int
		Containers                     []struct{ Namespace, Pod, Container string } `json:"owners"`
	}
)

// getJSON asks for JSON.
func (d *podgaugeProcess) getJSON(ctx context.Context, path string, query url.Values, into any) error {
	body, err := d.get(ctx, path+"?"+query.Encode())
	if err != nil {
		return err
	}
	defer body.Close()
	if err := json.NewDecoder(body).Decode(into); err != nil {
		return fmt.Errorf("read the answer of %s: %w", path, err)
	}
	return nil
}

// device is how podgauge says that a device is.
func (d *podgaugeProcess) device(ctx context.Context, id string) (apiDevice, error) {
	var answer struct{ Devices []apiDevice }
	if err := d.getJSON(ctx, "/api/v1/devices", url.Values{"device": {id}}, &answer); err != nil {
		return apiDevice{}, err
	}
	if len(answer.Devices) != 1 || answer.Devices[0].Device != id {
		return apiDevice{}, fmt.Errorf("asked for %s it says %+v", id, answer.Devices)
	}
	return answer.Devices[0], nil
}

// incidents are all those that have these names and values, the newest first.
func (d *podgaugeProcess) incidents(ctx context.Context, with ...string) ([]apiIncident, error) {
	asked := url.Values{"limit": {"1000"}}
	for i := 0; i < len(with); i += 2 {
		asked.Set(with[i], with[i+1])
	}
	var answer struct {
		Kept      bool
		Error     string
		Total     int
		Incidents []apiIncident
	}
	if err := d.getJSON(ctx, "/api/v1/incidents", asked, &answer); err != nil {
		return nil, err
	}
	if !answer.Kept || answer.Error != "" || answer.Total != len(answer.Incidents) {
		return nil, fmt.Errorf("kept are %v (%s), and %d of %d told", answer.Kept, answer.Error, len(answer.Incidents), answer.Total)
	}
	return answer.Incidents, nil
}

// waitForIncident waits until what happened to a device for a reason is told as one incident that is as it should be, and returns it.
func (d *podgaugeProcess) waitForIncident(ctx context.Context, t *testing.T, id, reason string, check func(apiIncident) error) (told apiIncident) {
	t.Helper()
	await(ctx, t, fmt.Sprintf("it is told that %s has come to %s", reason, id), func(ctx context.Context) error {
		all, err := d.incidents(ctx, "device", id, "reason", reason)
		if err != nil {
			return err
		}
		if len(all) != 1 || all[0].Device != id {
			return fmt.Errorf("told are %+v", all)
		}
		told = all[0]
		return check(told)
	})
	return told
}

// affectsOnly says where an incident does not name this container, and it alone.
func (i apiIncident) affectsOnly(h node.OwnerKey) error {
	if len(i.Containers) != 1 || i.OwnerUnnamed || i.ContainersUnknown {
		return fmt.Errorf("affected: %+v (incomplete %v, unknown %v)", i.Containers, i.OwnerUnnamed, i.ContainersUnknown)
	}
	if got := i.Containers[0].owner(); got != h {
		return fmt.Errorf("hit is %+v, not %+v", got, h)
	}
	return nil
}

func (h apiAffectedContainer) owner() node.OwnerKey {
	return node.OwnerKey{Namespace: h.Namespace, Pod: h.Pod, Container: h.Container}
}

// hasIncident says where an incident is not as it was.
func (d *podgaugeProcess) hasIncident(ctx context.Context, before apiIncident) error {
	all, err := d.incidents(ctx, "device", before.Device, "reason", before.Reason)
	if err == nil && (len(all) != 1 || !reflect.DeepEqual(all[0], before)) {
		err = fmt.Errorf("told are %+v, and was %+v", all, before)
	}
	return err
}

// podgaugeOutput runs a command of podgauge's in the node, as kubectl exec would in its pod, and returns what it prints.
func podgaugeOutput(ctx context.Context, t *testing.T, n *node.RealNode, words ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, waitTimeout)
	defer cancel()
	p, err := n.Exec("podgauge-"+words[0], append([]string{commandLine(t)[0]}, words...))
	if err != nil {
		t.Fatal(err)
	}
	state, err := p.Wait(ctx)
	if err != nil {
		t.Fatal(err)
	}
	out, err := p.Output()
	if err != nil || !state.Success() {
		t.Fatalf("podgauge %s: %s: %v\n%s", words, state, err, out)
	}
	return out
}

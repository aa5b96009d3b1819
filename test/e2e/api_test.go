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

// What podgauge answers in JSON, as far as tests look at it: by the names of docs/api.md, which are a contract.
type (
	// incident is what happened to a device.
	incident struct {
		ID             uint64
		First, Last    time.Time
		Count          uint64
		Device, GPU    string
		Reason         string
		Xid            int
		Class, Action  string
		Condemned      bool
		Healed         time.Time
		Holders        []hit
		Nameless       bool
		HoldersUnknown bool `json:"holders_unknown"`
	}
	// hit is a container that had the device.
	hit struct {
		Namespace, Pod, Container string
		UID                       string
		Since, Until              time.Time
		Ended                     *struct {
			Phase, Reason string
			ExitCode      *int `json:"exit_code"`
		}
	}
	// standing is how a device is.
	standing struct {
		Device, Health, Reason, Action, Hold string
		Healthy                              bool
		Flaps                                int
		Holders                              []struct{ Namespace, Pod, Container string }
	}
)

// answers asks for JSON.
func (d *daemon) answers(ctx context.Context, path string, with url.Values, into any) error {
	body, err := d.get(ctx, path+"?"+with.Encode())
	if err != nil {
		return err
	}
	defer body.Close()
	if err := json.NewDecoder(body).Decode(into); err != nil {
		return fmt.Errorf("read the answer of %s: %w", path, err)
	}
	return nil
}

// standing is how podgauge says that a device is.
func (d *daemon) standing(ctx context.Context, id string) (standing, error) {
	var answer struct{ Devices []standing }
	if err := d.answers(ctx, "/api/v1/devices", url.Values{"device": {id}}, &answer); err != nil {
		return standing{}, err
	}
	if len(answer.Devices) != 1 || answer.Devices[0].Device != id {
		return standing{}, fmt.Errorf("asked for %s it says %+v", id, answer.Devices)
	}
	return answer.Devices[0], nil
}

// incidents are all those that have these names and values, the newest first.
func (d *daemon) incidents(ctx context.Context, with ...string) ([]incident, error) {
	asked := url.Values{"limit": {"1000"}}
	for i := 0; i < len(with); i += 2 {
		asked.Set(with[i], with[i+1])
	}
	var answer struct {
		Kept      bool
		Error     string
		Total     int
		Incidents []incident
	}
	if err := d.answers(ctx, "/api/v1/incidents", asked, &answer); err != nil {
		return nil, err
	}
	if !answer.Kept || answer.Error != "" || answer.Total != len(answer.Incidents) {
		return nil, fmt.Errorf("kept are %v (%s), and %d of %d told", answer.Kept, answer.Error, len(answer.Incidents), answer.Total)
	}
	return answer.Incidents, nil
}

// happened waits until what happened to a device for a reason is told as one incident that is as it should be, and returns it.
func (d *daemon) happened(ctx context.Context, t *testing.T, id, reason string, good func(incident) error) (told incident) {
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
		return good(told)
	})
	return told
}

// hitAlone says where an incident does not name this container, and it alone.
func (i incident) hitAlone(h node.Holder) error {
	if len(i.Holders) != 1 || i.Nameless || i.HoldersUnknown {
		return fmt.Errorf("hit are %+v (nameless %v, unknown %v)", i.Holders, i.Nameless, i.HoldersUnknown)
	}
	if got := i.Holders[0].holder(); got != h {
		return fmt.Errorf("hit is %+v, not %+v", got, h)
	}
	return nil
}

func (h hit) holder() node.Holder {
	return node.Holder{Namespace: h.Namespace, Pod: h.Pod, Container: h.Container}
}

// remembers says where an incident is not as it was.
func (d *daemon) remembers(ctx context.Context, was incident) error {
	all, err := d.incidents(ctx, "device", was.Device, "reason", was.Reason)
	if err == nil && (len(all) != 1 || !reflect.DeepEqual(all[0], was)) {
		err = fmt.Errorf("told are %+v, and was %+v", all, was)
	}
	return err
}

// says runs a command of podgauge's in the node, as kubectl exec would in its pod, and returns what it prints.
func says(ctx context.Context, t *testing.T, n *node.Node, words ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, patience)
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

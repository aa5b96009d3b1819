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

// The types decode the fields of podgauge's JSON responses that the tests use. Names are from docs/reference/api.md, a contract.
type (
	// apiIncident is a recorded fault of a device.
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
	// apiAffectedContainer is a container to which the device was allocated.
	apiAffectedContainer struct {
		Namespace, Pod, Container string
		UID                       string
		Since, Until              time.Time
		Ended                     *struct {
			Phase, Reason string
			ExitCode      *int `json:"exit_code"`
		}
	}
	// apiDevice is the state of a device.
	apiDevice struct {
		Device, Health, Reason string
		Healthy                bool
		Containers             []struct{ Namespace, Pod, Container string } `json:"owners"`
	}
)

// getJSON requests a path and decodes the response.
func (d *podgaugeProcess) getJSON(ctx context.Context, path string, query url.Values, into any) error {
	body, err := d.get(ctx, path+"?"+query.Encode())
	if err != nil {
		return err
	}
	defer body.Close()
	if err := json.NewDecoder(body).Decode(into); err != nil {
		return fmt.Errorf("decode response of %s: %w", path, err)
	}
	return nil
}

// device returns the state of a device from podgauge's API.
func (d *podgaugeProcess) device(ctx context.Context, id string) (apiDevice, error) {
	var response struct{ Devices []apiDevice }
	if err := d.getJSON(ctx, "/api/v1/devices", url.Values{"device": {id}}, &response); err != nil {
		return apiDevice{}, err
	}
	if len(response.Devices) != 1 || response.Devices[0].Device != id {
		return apiDevice{}, fmt.Errorf("devices with id %s: got %+v, want one", id, response.Devices)
	}
	return response.Devices[0], nil
}

// incidents returns the incidents that match the filters, which are names and values in turn; the newest incident is first.
func (d *podgaugeProcess) incidents(ctx context.Context, filters ...string) ([]apiIncident, error) {
	query := url.Values{"limit": {"1000"}}
	for i := 0; i < len(filters); i += 2 {
		query.Set(filters[i], filters[i+1])
	}
	var response struct {
		Persisted bool
		Error     string
		Total     int
		Incidents []apiIncident
	}
	if err := d.getJSON(ctx, "/api/v1/incidents", query, &response); err != nil {
		return nil, err
	}
	if !response.Persisted || response.Error != "" || response.Total != len(response.Incidents) {
		return nil, fmt.Errorf("incidents: got persisted %v, error %q, %d of %d", response.Persisted, response.Error, len(response.Incidents), response.Total)
	}
	return response.Incidents, nil
}

// waitForIncident waits until a device has exactly one incident with this reason, and check accepts it. It returns the incident.
func (d *podgaugeProcess) waitForIncident(t *testing.T, id, reason string, check func(apiIncident) error) (found apiIncident) {
	t.Helper()
	await(t, fmt.Sprintf("incident %s of %s is as expected", reason, id), func(ctx context.Context) error {
		all, err := d.incidents(ctx, "device", id, "reason", reason)
		if err != nil {
			return err
		}
		if len(all) != 1 || all[0].Device != id {
			return fmt.Errorf("incidents: got %+v, want one", all)
		}
		found = all[0]
		return check(found)
	})
	return found
}

// waitForOwner waits until podgauge's API reports this container as the only owner of a device.
func (d *podgaugeProcess) waitForOwner(t *testing.T, id string, owner node.OwnerKey) {
	t.Helper()
	await(t, "the owner of "+id+" is reported", func(ctx context.Context) error {
		s, err := d.device(ctx, id)
		if err == nil && (len(s.Containers) != 1 || node.OwnerKey(s.Containers[0]) != owner) {
			err = fmt.Errorf("device: got %+v, want owner %+v", s, owner)
		}
		return err
	})
}

// affectsOnly returns an error unless this container is the only affected container of the incident.
func (i apiIncident) affectsOnly(owner node.OwnerKey) error {
	if len(i.Containers) != 1 || i.OwnerUnnamed || i.ContainersUnknown {
		return fmt.Errorf("affected containers: got %+v (incomplete %v, unknown %v), want one", i.Containers, i.OwnerUnnamed, i.ContainersUnknown)
	}
	if got := i.Containers[0].owner(); got != owner {
		return fmt.Errorf("affected container: got %+v, want %+v", got, owner)
	}
	return nil
}

func (c apiAffectedContainer) owner() node.OwnerKey {
	return node.OwnerKey{Namespace: c.Namespace, Pod: c.Pod, Container: c.Container}
}

// checkIncidentUnchanged returns an error unless podgauge reports the incident exactly as before.
func (d *podgaugeProcess) checkIncidentUnchanged(ctx context.Context, before apiIncident) error {
	all, err := d.incidents(ctx, "device", before.Device, "reason", before.Reason)
	if err == nil && (len(all) != 1 || !reflect.DeepEqual(all[0], before)) {
		err = fmt.Errorf("incidents: got %+v, want %+v", all, before)
	}
	return err
}

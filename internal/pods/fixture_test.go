package pods

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/device"
)

// jsonPod is a pod as Kubernetes writes it in JSON, as far as it is kept.
type jsonPod struct {
	Metadata struct {
		Name, Namespace, UID                 string
		Labels                               map[string]string
		CreationTimestamp, DeletionTimestamp *time.Time
	}
	Status struct {
		Phase, Reason              string
		InitContainerStatuses      []jsonContainer
		ContainerStatuses          []jsonContainer
		EphemeralContainerStatuses []jsonContainer
	}
}

type jsonContainer struct {
	Name, ContainerID string
	RestartCount      int32
	State, LastState  jsonState
}

type jsonState struct {
	Waiting, Running, Terminated *struct {
		Reason                string
		ExitCode, Signal      int32
		StartedAt, FinishedAt *time.Time
	}
}

// pod is what is to be kept of it, with the labels that begin so.
func (j *jsonPod) pod(prefix string) Pod {
	p := Pod{
		Name: j.Metadata.Name, Namespace: j.Metadata.Namespace, UID: j.Metadata.UID,
		Created: orZero(j.Metadata.CreationTimestamp), Deleting: j.Metadata.DeletionTimestamp != nil,
		Phase: j.Status.Phase, Reason: j.Status.Reason,
	}
	for _, name := range slices.Sorted(maps.Keys(j.Metadata.Labels)) {
		if strings.HasPrefix(name, prefix) {
			p.Labels = append(p.Labels, device.Label{Name: name, Value: j.Metadata.Labels[name]})
		}
	}
	for _, part := range []struct {
		kind ContainerKind
		list []jsonContainer
	}{{Init, j.Status.InitContainerStatuses}, {Regular, j.Status.ContainerStatuses}, {Ephemeral, j.Status.EphemeralContainerStatuses}} {
		for _, c := range part.list {
			id := c.ContainerID
			if _, after, ok := strings.Cut(id, "://"); ok {
				id = after
			}
			p.Containers = append(p.Containers, Container{
				Name: c.Name, Kind: part.kind, ID: id, Restarts: c.RestartCount, State: c.State.state(), LastState: c.LastState.state(),
			})
		}
	}
	return p
}

func (j jsonState) state() ContainerState {
	switch {
	case j.Running != nil:
		return ContainerState{Type: Running, Started: orZero(j.Running.StartedAt)}
	case j.Terminated != nil:
		t := j.Terminated
		return ContainerState{Terminated, t.Reason, t.ExitCode, t.Signal, orZero(t.StartedAt), orZero(t.FinishedAt)}
	case j.Waiting != nil:
		return ContainerState{Type: Waiting, Reason: j.Waiting.Reason}
	}
	return ContainerState{}
}

func orZero(t *time.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return *t
}

// fixture is a pod that Kubernetes marshalled (test/external/podsfixture).
func fixture(t testing.TB, name string) (wire []byte, same jsonPod) {
	t.Helper()
	wire, err := os.ReadFile(filepath.Join("testdata", name+".pb"))
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join("testdata", name+".json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &same); err != nil {
		t.Fatal(err)
	}
	return wire, same
}

func fixtures(t testing.TB) (names []string) {
	t.Helper()
	files, err := filepath.Glob("testdata/*.pb")
	if err != nil || len(files) < 12 {
		t.Fatalf("fixtures are %v: %v", files, err)
	}
	for _, file := range files {
		names = append(names, strings.TrimSuffix(filepath.Base(file), ".pb"))
	}
	return names
}

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

// referencePod is the kept subset of a pod in Kubernetes' JSON.
type referencePod struct {
	Metadata struct {
		Name, Namespace, UID string
		Labels               map[string]string
		CreationTimestamp    *time.Time
	}
	Status struct {
		Phase, Reason              string
		InitContainerStatuses      []referenceContainer
		ContainerStatuses          []referenceContainer
		EphemeralContainerStatuses []referenceContainer
	}
}

type referenceContainer struct {
	Name, ContainerID string
	RestartCount      int32
	State, LastState  referenceState
}

type referenceState struct {
	Waiting, Running *struct{}
	Terminated       *struct {
		Reason     string
		ExitCode   int32
		FinishedAt *time.Time
	}
}

// pod returns the expected Pod, with the labels that have a prefix.
func (j *referencePod) pod(prefix string) Pod {
	p := Pod{
		Name: j.Metadata.Name, Namespace: j.Metadata.Namespace, UID: j.Metadata.UID,
		Created: orZero(j.Metadata.CreationTimestamp), Phase: j.Status.Phase, Reason: j.Status.Reason,
	}
	for _, name := range slices.Sorted(maps.Keys(j.Metadata.Labels)) {
		if strings.HasPrefix(name, prefix) {
			p.Labels = append(p.Labels, device.Label{Name: name, Value: j.Metadata.Labels[name]})
		}
	}
	for _, c := range slices.Concat(j.Status.ContainerStatuses, j.Status.InitContainerStatuses, j.Status.EphemeralContainerStatuses) {
		id := c.ContainerID
		if _, after, ok := strings.Cut(id, "://"); ok {
			id = after
		}
		p.Containers = append(p.Containers, Container{
			Name: c.Name, ID: id, Restarts: c.RestartCount, State: c.State.state(), LastState: c.LastState.state(),
		})
	}
	return p
}

func (j referenceState) state() ContainerState {
	switch {
	case j.Running != nil:
		return ContainerState{Type: Running}
	case j.Terminated != nil:
		return ContainerState{Terminated, j.Terminated.Reason, j.Terminated.ExitCode, orZero(j.Terminated.FinishedAt)}
	}
	return ContainerState{}
}

func orZero(t *time.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.Local() // like time.Unix
}

// fixture returns a pod in Kubernetes' protobuf and JSON (test/e2e/podsfixture).
func fixture(t testing.TB, name string) (wire []byte, same referencePod) {
	t.Helper()
	wire, err := os.ReadFile(filepath.Join("testdata", name+".pb"))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(fixtureJSON(t, name), &same); err != nil {
		t.Fatal(err)
	}
	return wire, same
}

func fixtureJSON(t testing.TB, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", name+".json"))
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func fixtures(t testing.TB) (names []string) {
	t.Helper()
	files, err := filepath.Glob("testdata/*.pb")
	if err != nil || len(files) < 12 {
		t.Fatalf("fixtures %v: %v", files, err)
	}
	for _, file := range files {
		names = append(names, strings.TrimSuffix(filepath.Base(file), ".pb"))
	}
	return names
}

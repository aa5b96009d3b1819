// Package podsfixture has the tests of internal/pods that need Kubernetes' types, which the module test/e2e keeps out of the daemon.
package podsfixture

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/bufbuild/protocompile"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	api "k8s.io/kubelet/pkg/apis/pods/v1alpha1"
	"sigs.k8s.io/randfill"

	"github.com/podgauge/podgauge/internal/allocation"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/pods"
	"github.com/podgauge/podgauge/internal/pods/podpb"
	"github.com/podgauge/podgauge/internal/pubsub"
	"github.com/podgauge/podgauge/test/helpers/background"
	"github.com/podgauge/podgauge/test/helpers/require"
	"github.com/podgauge/podgauge/test/helpers/testfile"
)

// fakePodsServer is a kubelet's Pods API with these pods.
type fakePodsServer struct {
	api.UnimplementedPodsServer
	pods []*v1.Pod
}

func (s *fakePodsServer) WatchPods(_ *api.WatchPodsRequest, stream grpc.ServerStreamingServer[api.WatchPodsEvent]) error {
	for _, p := range s.pods {
		wire, err := p.Marshal()
		if err != nil {
			return err
		}
		if err := stream.Send(&api.WatchPodsEvent{Type: api.EventType_ADDED, Pod: wire}); err != nil {
			return err
		}
	}
	if err := stream.Send(&api.WatchPodsEvent{Type: api.EventType_INITIAL_SYNC_COMPLETE}); err != nil {
		return err
	}
	<-stream.Context().Done()
	return stream.Context().Err()
}

// TestDecodedPods checks that the client decodes pods with random fields as Kubernetes does.
func TestDecodedPods(t *testing.T) {
	fill := randfill.NewWithSeed(1).NilChance(0.3).NumElements(0, 4).MaxDepth(12)
	var s fakePodsServer
	for i := range 500 {
		p := &v1.Pod{}
		fill.Fill(p)
		p.Namespace, p.Name, p.UID = "team", fmt.Sprint("pod-", i), types.UID(fmt.Sprint("uid-", i))
		if i%4 > 0 { // the client keeps few ended pods
			p.Status.Phase = v1.PodRunning
		} else {
			p.Status.Phase = v1.PodFailed
		}
		s.pods = append(s.pods, p)
	}
	snapshot := watchPods(t, &s)
	statuses := 0
	for _, p := range s.pods {
		got, ok := snapshot.ByName(p.Namespace, p.Name)
		if !ok {
			t.Fatalf("pod %s is missing", p.UID)
		}
		// Kubernetes' decoding truncates times to seconds.
		wire, err := p.Marshal()
		require.NoError(t, err)
		var decoded v1.Pod
		require.NoError(t, decoded.Unmarshal(wire))
		want := wantPod(&decoded)
		if !got.Workload.Equal(want.Workload) {
			t.Errorf("pod %s: got workload %+v, want %+v", p.UID, got.Workload, want.Workload)
		}
		got.Workload, want.Workload = nil, nil                                           // printed by address
		if got, want := fmt.Sprintf("%+v", got), fmt.Sprintf("%+v", want); got != want { // as text: labels can be nil or empty
			t.Fatalf("pod %s: got\n%s, want\n%s", p.UID, got, want)
		}
		statuses += len(want.Containers)
	}
	if statuses < 500 {
		t.Errorf("got %d containers, want at least 500", statuses)
	}
}

// watchPods returns the pods of a server after the initial synchronization.
func watchPods(t *testing.T, s *fakePodsServer) pods.Pods {
	t.Helper()
	listener, err := net.Listen("unix", filepath.Join(background.Dir(t), "s"))
	require.NoError(t, err)
	g := grpc.NewServer()
	api.RegisterPodsServer(g, s)
	go g.Serve(listener)
	defer g.Stop()
	var published pubsub.Value[pods.Pods]
	c, err := pods.New(listener.Addr().String(), pods.Options{Pods: &published, Labels: []string{"*"}})
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	done := make(chan error)
	go func() { done <- c.Run(ctx) }()
	defer func() { cancel(); <-done }()
	for {
		snapshot, changed := published.Get()
		if snapshot.Synced {
			return snapshot
		}
		select {
		case <-changed:
		case <-ctx.Done():
			t.Fatalf("timeout: the pods are not synchronized: %v", snapshot.Err)
		}
	}
}

// wantPod returns the expected pod of the client.
func wantPod(p *v1.Pod) pods.Pod {
	k := pods.Pod{
		Namespace: p.Namespace, Name: p.Name, UID: string(p.UID), Created: p.CreationTimestamp.Time,
		Phase: string(p.Status.Phase), Reason: p.Status.Reason,
	}
	for _, name := range slices.Sorted(maps.Keys(p.Labels)) {
		k.Labels = append(k.Labels, device.Label{Name: name, Value: p.Labels[name]})
	}
	w := &allocation.Workload{Labels: maps.Clone(p.Labels)}
	maps.DeleteFunc(w.Labels, func(_, value string) bool { return value == "" })
	if c := metav1.GetControllerOf(p); c != nil {
		w.Controller = allocation.Controller{Kind: c.Kind, Name: c.Name}
	}
	if w.Controller != (allocation.Controller{}) || len(w.Labels) > 0 {
		k.Workload = w
	}
	for _, s := range slices.Concat(p.Status.ContainerStatuses, p.Status.InitContainerStatuses, p.Status.EphemeralContainerStatuses) {
		k.Containers = append(k.Containers, wantContainer(s))
	}
	return k
}

func wantContainer(s v1.ContainerStatus) pods.Container {
	c := pods.Container{Name: s.Name, ID: s.ContainerID, Restarts: s.RestartCount, State: wantState(s.State), LastState: wantState(s.LastTerminationState)}
	if _, id, ok := strings.Cut(c.ID, "://"); ok {
		c.ID = id
	}
	return c
}

// wantState returns the last of several states, because Kubernetes marshals them in this order.
func wantState(s v1.ContainerState) pods.ContainerState {
	switch {
	case s.Terminated != nil:
		e := s.Terminated
		return pods.ContainerState{Type: pods.Terminated, Reason: e.Reason, ExitCode: e.ExitCode, Finished: e.FinishedAt.Time}
	case s.Running != nil:
		return pods.ContainerState{Type: pods.Running}
	case s.Waiting != nil:
		return pods.ContainerState{Type: pods.Waiting}
	}
	return pods.ContainerState{}
}

var update = flag.Bool("update", false, "write the pods as the kubelet's Pods API marshals them")

// TestFixtures checks that each NAME.pb in internal/pods/testdata is the pod of NAME.json, as the kubelet's Pods API marshals it.
func TestFixtures(t *testing.T) {
	files, err := filepath.Glob("../../../internal/pods/testdata/*.json")
	if err != nil || len(files) == 0 {
		t.Fatalf("no pods: %v", err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		var compact bytes.Buffer // as the API server stores fieldsV1
		if err := json.Compact(&compact, text); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		var pod v1.Pod
		if err := json.Unmarshal(compact.Bytes(), &pod); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		if same, err := json.MarshalIndent(pod, "", " "); err != nil || string(same)+"\n" != string(text) {
			t.Errorf("%s is not as Kubernetes marshals it: %v, want\n%s", file, err, same)
		}
		want, err := pod.Marshal()
		require.NoError(t, err)
		testfile.CheckGolden(t, *update, strings.TrimSuffix(file, ".json")+".pb", string(want))
	}
}

// TestSchema checks that pod.pb.go is generated from the present pod.proto.
func TestSchema(t *testing.T) {
	compiler := protocompile.Compiler{
		Resolver: protocompile.WithStandardImports(&protocompile.SourceResolver{ImportPaths: []string{"../../.."}}),
	}
	files, err := compiler.Compile(t.Context(), "internal/pods/podpb/pod.proto")
	require.NoError(t, err)
	schema := protodesc.ToFileDescriptorProto(files[0])
	generated := protodesc.ToFileDescriptorProto(podpb.File_internal_pods_podpb_pod_proto)
	if !proto.Equal(schema, generated) {
		t.Errorf("pod.pb.go differs from pod.proto, whose comment has the command:\ngot %v\nwant %v", generated, schema)
	}
}

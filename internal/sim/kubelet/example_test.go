package kubelet_test

import (
	"context"
	"fmt"
	"os"

	"github.com/podgauge/podgauge/internal/sim/kubelet"
)

// A pod survives a restart of the kubelet.
func Example() {
	dir, err := os.MkdirTemp("", "kubelet")
	if err != nil {
		panic(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	ctx, stop := context.WithCancel(context.Background())
	k := kubelet.New(kubelet.Options{Dir: dir})
	ended := make(chan error)
	go func() { ended <- k.Run(ctx) }()

	pod := kubelet.PodSpec{Name: "train", Containers: []kubelet.ContainerSpec{{Name: "main"}}}
	if err := k.RunPod(ctx, pod); err != nil {
		fmt.Println(err)
	}
	if err := k.Restart(ctx, func() { fmt.Println("serving:", k.State().Serving) }); err != nil {
		fmt.Println(err)
	}
	if err := k.Wait(ctx, func(s kubelet.KubeletState) bool { return s.PodsRead }); err != nil {
		fmt.Println(err)
	}
	for _, p := range k.State().Pods {
		fmt.Println(p.Namespace, p.Name, p.Phase)
	}
	stop()
	fmt.Println(<-ended)
	// Output:
	// serving: false
	// default train Running
	// <nil>
}

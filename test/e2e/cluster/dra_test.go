//go:build cluster

package cluster_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"

	"github.com/podgauge/podgauge/test/e2e/node"
)

// deviceClass selects the devices of the DRA driver.
const deviceClass = `
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: gpu.nvidia.com}
spec:
  selectors: [{cel: {expression: 'device.driver == "gpu.nvidia.com"'}}]
`

// startDRADriver starts a DRA driver in the node with GPUs by UUID, ordered by minor number, and waits for the published devices.
func (s *clusterFixture) startDRADriver(ctx context.Context, uuids []string) error {
	binary, err := os.Executable()
	if err != nil {
		return err
	}
	if _, err := s.Apply(ctx, deviceClass); err != nil {
		return err
	}
	argv := []string{binary, draDriverCommand, "--kubeconfig=" + s.Kubeconfig, "--node=" + node.Name, "--uuids=" + strings.Join(uuids, ",")}
	_, err = s.Node.Start(ctx, draDriverCommand, argv, func(ctx context.Context) error {
		var slices struct {
			Items []struct {
				Spec struct{ Devices []json.RawMessage }
			}
		}
		if err := s.Get(ctx, "/apis/resource.k8s.io/v1/resourceslices", &slices); err != nil {
			return err
		}
		if len(slices.Items) != 1 || len(slices.Items[0].Spec.Devices) != len(uuids) {
			return fmt.Errorf("find devices of the DRA driver: got %+v", slices)
		}
		return nil
	})
	return err
}

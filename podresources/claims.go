package podresources

import (
	"strings"

	"github.com/podgauge/podgauge/device"
	api "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// appendClaimed appends a row for each claim that gives one of our devices.
func (c *Client) appendClaimed(rows []device.Holding, claims []device.Claim) []device.Holding {
	if c.Claimed == nil {
		return rows
	}
	for _, claim := range claims {
		if id, ours := c.Claimed(claim); ours && claim.Driver != "" && !strings.Contains(claim.Driver, "/") {
			rows = append(rows, device.Holding{Resource: claim.Driver, Offered: id.Offered(), Owner: claim.Owner})
		}
	}
	return rows
}

// rowsOf are the holdings of one pod, as Get names them.
func (c *Client) rowsOf(pod *api.PodResources) (rows []device.Holding) {
	for _, of := range pod.GetContainers() {
		owner := device.Owner{Namespace: pod.GetNamespace(), Pod: pod.GetName(), Container: of.GetName()}
		for _, d := range of.GetDevices() {
			for _, id := range d.GetDeviceIds() {
				rows = append(rows, device.Holding{Resource: d.GetResourceName(), Offered: device.OfferedID(id), Owner: owner})
			}
		}
		for _, dynamic := range of.GetDynamicResources() {
			for _, r := range dynamic.GetClaimResources() {
				claim := device.Claim{
					Owner: owner, ClaimNamespace: dynamic.GetClaimNamespace(), ClaimName: dynamic.GetClaimName(),
					Driver: r.GetDriverName(), Pool: r.GetPoolName(), Device: r.GetDeviceName(), Share: r.GetShareId(),
				}
				for _, d := range r.GetCdiDevices() {
					claim.CDI = append(claim.CDI, d.GetName())
				}
				rows = c.appendClaimed(rows, []device.Claim{claim})
			}
		}
	}
	return rows
}

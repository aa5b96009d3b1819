package podresources

import (
	"slices"
	"strings"

	"github.com/podgauge/podgauge/internal/device"
	api "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// appendClaimAllocations appends a row for each claim that gives one of our devices.
func (c *Client) appendClaimAllocations(allocations []device.Allocation, claims []device.Claim) []device.Allocation {
	if c.options.Devices == nil {
		return allocations
	}
	for _, claim := range claims {
		if id, isOwn := c.options.Devices.ClaimedDevice(claim); isOwn && claim.Driver != "" && !strings.Contains(claim.Driver, "/") {
			allocations = append(allocations, device.Allocation{Resource: claim.Driver, DeviceID: id.Advertised(), Owner: claim.Owner})
		}
	}
	return allocations
}

// trimCDI leaves each row of a claim the CDI names of its own device. The kubelet makes one
// list of names for all devices of a driver, so each row also has the names of the rows before
// it (GetDynamicResources in pkg/kubelet/cm/container_manager_linux.go). A row whose names do
// not begin with those of the row before it stays as it is.
func trimCDI(rows []device.Claim) {
	for i := len(rows) - 1; i > 0; i-- {
		before, row := &rows[i-1], &rows[i]
		n := len(before.CDI)
		if before.Driver == row.Driver && n <= len(row.CDI) && slices.Equal(row.CDI[:n], before.CDI) {
			row.CDI = row.CDI[n:]
		}
	}
}

// podAllocations are the holdings of one pod, as Get names them.
func (c *Client) podAllocations(pod *api.PodResources) (allocations []device.Allocation) {
	for _, container := range pod.GetContainers() {
		owner := device.Owner{Namespace: pod.GetNamespace(), Pod: pod.GetName(), Container: container.GetName()}
		for _, d := range container.GetDevices() {
			for _, id := range d.GetDeviceIds() {
				allocations = append(allocations, device.Allocation{Resource: d.GetResourceName(), DeviceID: device.AdvertisedID(id), Owner: owner})
			}
		}
		for _, dynamic := range container.GetDynamicResources() {
			var claims []device.Claim
			for _, r := range dynamic.GetClaimResources() {
				claim := device.Claim{
					Owner: owner, ClaimNamespace: dynamic.GetClaimNamespace(), ClaimName: dynamic.GetClaimName(),
					Driver: r.GetDriverName(), Pool: r.GetPoolName(), Device: r.GetDeviceName(), ShareID: r.GetShareId(),
				}
				for _, d := range r.GetCdiDevices() {
					claim.CDI = append(claim.CDI, d.GetName())
				}
				claims = append(claims, claim)
			}
			trimCDI(claims)
			allocations = c.appendClaimAllocations(allocations, claims)
		}
	}
	return allocations
}

package podresources

import (
	"slices"
	"strings"

	"github.com/podgauge/podgauge/internal/device"
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
			var claims []device.Claim
			for _, r := range dynamic.GetClaimResources() {
				claim := device.Claim{
					Owner: owner, ClaimNamespace: dynamic.GetClaimNamespace(), ClaimName: dynamic.GetClaimName(),
					Driver: r.GetDriverName(), Pool: r.GetPoolName(), Device: r.GetDeviceName(), Share: r.GetShareId(),
				}
				for _, d := range r.GetCdiDevices() {
					claim.CDI = append(claim.CDI, d.GetName())
				}
				claims = append(claims, claim)
			}
			trimCDI(claims)
			rows = c.appendClaimed(rows, claims)
		}
	}
	return rows
}

package podresources

import (
	"slices"
	"strings"

	"github.com/podgauge/podgauge/internal/device"
)

// addClaimAllocations adds an allocation for each claim that allocates a device of this node.
func (c *Client) addClaimAllocations(r *rawListResponse) {
	if c.options.Devices == nil {
		return
	}
	for _, claim := range r.resources.claims {
		if id, isOwn := c.options.Devices.ClaimedDevice(claim); isOwn && claim.Driver != "" && !strings.Contains(claim.Driver, "/") {
			r.allocations = append(r.allocations, device.Allocation{Resource: claim.Driver, DeviceID: id.Advertised(), Owner: claim.Owner})
		}
	}
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

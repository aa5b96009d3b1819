package exporter_test

import (
	"fmt"
	"io/fs"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/podgauge/podgauge/exporter"
	"github.com/podgauge/podgauge/internal/allocation"
	"github.com/podgauge/podgauge/test/bubble"
)

// nicFS is a sysfs of NICs with one port, and of a CPU socket.
func nicFS(nics int) fstest.MapFS {
	s := fstest.MapFS{
		"class/hwmon/hwmon1/device/power1_oem_info":      {Data: []byte("Grace Power Socket 0\n")},
		"class/hwmon/hwmon1/device/power1_average":       {Data: []byte("98029000\n")},
		"class/thermal/thermal_zone0/device/description": {Data: []byte("Thermal Zone Skt0 TJMax\n")},
		"class/thermal/thermal_zone0/temp":               {Data: []byte("51000\n")},
	}
	for i := range nics {
		folder := fmt.Sprintf("class/infiniband/mlx5_%d/", i)
		s[folder+"device"] = &fstest.MapFile{Data: fmt.Appendf(nil, "../../../0000:%02x:00.0", 0x3a+i), Mode: fs.ModeSymlink}
		for file, content := range map[string]string{
			"state": "4: ACTIVE", "phys_state": "5: LinkUp", "rate": "400 Gb/sec (4X NDR)", "link_layer": "InfiniBand",
			"counters/port_rcv_data": "1000", "counters/port_xmit_data": "2000", "counters/link_downed": "1",
			"counters/link_error_recovery": "2", "counters/symbol_error": "3", "counters/port_rcv_errors": "4",
			"counters/local_link_integrity_errors": "5", "counters/excessive_buffer_overrun_errors": "6",
			"hw_counters/out_of_sequence": "7", "hw_counters/local_ack_timeout_err": "8",
		} {
			s[folder+"ports/1/"+file] = &fstest.MapFile{Data: []byte(content + "\n")}
		}
	}
	return s
}

// allocateNICs sets the allocations from rows of "resource id=namespace/pod/container"; a resource without a slash is a DRA driver.
func (d *scrapeFixture) allocateNICs(rows ...string) {
	a := allocation.Snapshot{At: time.Now(), Complete: true}
	for _, row := range rows {
		name, owner, _ := strings.Cut(row, "=")
		resource, id, _ := strings.Cut(name, " ")
		allocated := &a.Resources.Allocated
		if strings.Contains(resource, "/") {
			allocated.Devices = append(allocated.Devices, allocation.ResourceDevice{Owner: ownerOf(owner), Resource: resource, ID: id})
		} else {
			allocated.Claims = append(allocated.Claims, allocation.Claim{Owner: ownerOf(owner), Driver: resource, Device: id})
		}
	}
	d.setAllocations(a)
}

// addRDMA adds a NIC of a pod, a NIC of two containers of a pod, a NIC of two pods, and an unallocated NIC.
func addRDMA(d *scrapeFixture) {
	d.sysfs = nicFS(4)
	d.allocateNICs("nvidia.com/sriov 0000:3a:00.0=team/train/main", "dra.net pci-0000-3b-00-0=team/a/main", "dra.net pci-0000-3b-00-0=team/a/side",
		"example.com/nic mlx5_2=team/b/main", "example.com/nic mlx5_2=other/c/main", "example.com/nic unknown=team/d/main")
}

// TestRDMAOwners checks the owners of ports and bytes while pods change, with one and with several devices.
func TestRDMAOwners(t *testing.T) {
	const up, received = "podgauge_rdma_port_up", "podgauge_rdma_port_received_bytes_total"
	series := func(family, owner string, nic int, value string) string {
		o := allocation.Owner{}
		if owner != "" {
			o = ownerOf(owner)
		}
		return fmt.Sprintf(`%s{container=%q,device="mlx5_%d",namespace=%q,pod=%q,port="1"} %s`, family, o.Container, nic, o.Namespace, o.Pod, value)
	}
	for _, stable := range []bool{false, true} {
		bubble.Test(t, func(t *testing.T) {
			d := newScrapeFixture(0)
			root := nicFS(2)
			d.sysfs = root
			h := d.handler(exporter.Options{StableSeries: stable})
			next := func(words string) string { // of mlx5_0
				time.Sleep(2 * time.Second)
				root["class/infiniband/mlx5_0/ports/1/counters/port_rcv_data"] = &fstest.MapFile{Data: []byte(words)}
				return scrape(t, h)
			}
			if stable {
				d.allocateNICs("dra.net mlx5_0=n/a/c")
				assertSeries(t, next("1000"), series(up, "", 0, "1"), series(received, "", 0, "4000"),
					`podgauge_rdma_allocation_info{container="c",device="mlx5_0",device_id="mlx5_0",namespace="n",pod="a",resource="dra.net"} 1`)
				return
			}
			assertSeries(t, next("1000"), series(up, "", 0, "1"), series(received, "", 0, "0"))
			d.allocateNICs("dra.net mlx5_0=n/a/c", "dra.net mlx5_1=n/a/c")
			assertSeries(t, next("1100"), series(up, "n/a/c", 0, "1"), series(up, "n/a/c", 1, "1"), "!"+series(up, "", 0, ""),
				series(received, "n/a/c", 0, "0"))
			assertSeries(t, next("1300"), series(received, "n/a/c", 0, "800"))
			d.allocateNICs("dra.net mlx5_0=n/b/c") // the bytes before the change belong to the pod before
			assertSeries(t, next("1400"), series(received, "n/b/c", 0, "0"), series(up, "", 1, "1"), "!"+series(up, "n/a/c", 0, ""))
			d.allocateNICs("dra.net mlx5_0=n/b/c", "dra.net mlx5_0=n/d/c") // is shared
			assertSeries(t, next("1500"), series(up, "", 0, "1"), series(received, "", 0, "400"))
			d.allocateNICs("dra.net mlx5_0=n/b/c")
			assertSeries(t, next("1600"), series(received, "n/b/c", 0, "400"))
			assertSeries(t, next("10"), series(received, "n/b/c", 0, "440")) // the driver was reloaded
			delete(root, "class/infiniband/mlx5_1/ports/1/link_layer")       // as if it hung: the info has no other series
			text := next("10")
			assertSeries(t, text, series(up, "", 1, "1"),
				`podgauge_rdma_port_info{container="",device="mlx5_0",link_layer="InfiniBand",namespace="",pci_bus_id="0000:3a:00.0",pod="",port="1"} 1`)
			assertAbsent(t, text, `podgauge_rdma_port_info{container="",device="mlx5_1"`)
		})
	}
}

// TestRDMAOff checks that nothing of sysfs is exported without a reader.
func TestRDMAOff(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		d := newScrapeFixture(1)
		d.allocateNICs("dra.net mlx5_0=n/a/c")
		text := scrape(t, d.handler(exporter.Options{}))
		assertAbsent(t, text, "podgauge_rdma")
		assertAbsent(t, text, "podgauge_cpu")
	})
}

package sysfs

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"path"
	"strconv"
	"strings"

	"github.com/podgauge/podgauge/internal/device"
)

// PortMetrics returns the metrics of a port, by the index in Port.Samples.
func PortMetrics() []device.Metric {
	metrics := make([]device.Metric, len(portRows))
	for i, row := range portRows {
		metrics[i] = device.Metric{Name: "podgauge_rdma_port_" + row.name, Kind: row.kind}
	}
	return metrics
}

// portRow is a metric of a port.
type portRow struct {
	name    string // without podgauge_rdma_port_
	kind    device.Kind
	sources []portSource // the first file that the driver has
}

// portSource is a file of a port. The value is a multiple of scale.
type portSource struct {
	file  string
	parse func(string) (float64, error)
	scale float64
}

// portRows are the files of mlx5
// (https://docs.kernel.org/admin-guide/abi-stable.html, sysfs-class-infiniband).
// AWS' efa has no folder counters (drivers/infiniband/hw/efa/efa_verbs.c).
var portRows = [...]portRow{
	{"up", device.Gauge, []portSource{{"state", parseUp, 1}}},
	{"physical_state_id", device.Gauge, []portSource{{"phys_state", parseStateID, 1}}},
	{"rate_bytes_per_second", device.Gauge, []portSource{{"rate", parseRate, 1}}},
	{"received_bytes_total", device.OwnerCounter, []portSource{
		{"counters/port_rcv_data", parseCounter, wordBytes}, {"hw_counters/rx_bytes", parseCounter, 1},
	}},
	{"transmitted_bytes_total", device.OwnerCounter, []portSource{
		{"counters/port_xmit_data", parseCounter, wordBytes}, {"hw_counters/tx_bytes", parseCounter, 1},
	}},
	faultRow("link_downed_total", "counters/link_downed"),
	faultRow("link_error_recoveries_total", "counters/link_error_recovery"),
	faultRow("symbol_errors_total", "counters/symbol_error"),
	faultRow("receive_errors_total", "counters/port_rcv_errors"),
	faultRow("local_link_integrity_errors_total", "counters/local_link_integrity_errors"),
	faultRow("excessive_buffer_overruns_total", "counters/excessive_buffer_overrun_errors"),
	faultRow("out_of_sequence_packets_total", "hw_counters/out_of_sequence"),
	faultRow("ack_timeouts_total", "hw_counters/local_ack_timeout_err"),
}

// wordBytes is the unit of port_rcv_data and port_xmit_data.
const wordBytes = 4

func faultRow(name, file string) portRow {
	return portRow{name, device.FaultCounter, []portSource{{file, parseCounter, 1}}}
}

// readRDMA reads all ports. In a network namespace other than the node's, the
// kernel lists no counters (setup_port in drivers/infiniband/core/sysfs.c).
func (c *collection) readRDMA() {
	for _, name := range c.list("class/infiniband") {
		folder := "class/infiniband/" + name
		link, _ := fs.ReadLink(c.root, folder+"/device") // a device without a parent has none
		pci := ""
		if link != "" {
			pci = path.Base(link)
		}
		c.reading.addNames(name, pci, c.list(folder+"/device/net"))
		for _, number := range c.list(folder + "/ports") {
			if len(c.reading.Ports) == maxEntries {
				c.miss(fmt.Errorf("read %s: only the first %d ports are read", folder, maxEntries))
				return
			}
			c.readPort(folder+"/ports/"+number, Port{Device: name, Port: number, PCI: pci})
		}
	}
}

// readPort reads a port. A value that cannot be read is left out. It is missing
// unless the driver lacks the file, as efa lacks counters of errors.
func (c *collection) readPort(folder string, p Port) {
	var err error
	if p.LinkLayer, err = c.file(folder + "/link_layer"); err != nil {
		c.miss(err)
	}
	id := device.ID(p.Device + "/" + p.Port)
	hasCounters := false // the drivers' bytes come before the errors
	for metric := range portRows {
		var failure error
		for _, s := range portRows[metric].sources {
			text, err := c.file(folder + "/" + s.file)
			value := 0.0
			if err == nil {
				value, err = s.parse(text)
			}
			if err == nil {
				p.Samples = append(p.Samples, device.Sample{Device: id, Metric: metric, Value: value * s.scale})
				failure, hasCounters = nil, portRows[metric].kind != device.Gauge
				break
			}
			if failure == nil || errors.Is(failure, fs.ErrNotExist) {
				failure = err
			}
		}
		if failure != nil && (!hasCounters || !errors.Is(failure, fs.ErrNotExist)) {
			c.miss(failure)
		}
	}
	c.reading.Ports = append(c.reading.Ports, p)
}

func parseCounter(text string) (float64, error) {
	n, err := strconv.ParseUint(text, 10, 64)
	return float64(n), err
}

// parseStateID parses "4: ACTIVE".
func parseStateID(text string) (float64, error) {
	id, _, _ := strings.Cut(text, ":")
	return parseCounter(id)
}

func parseUp(text string) (float64, error) {
	const active = 4
	id, err := parseStateID(text)
	if id == active {
		return 1, err
	}
	return 0, err
}

// parseRate returns the bytes per second of "400 Gb/sec (4X NDR)".
func parseRate(text string) (float64, error) {
	const bytesPerGigabit = 1e9 / 8
	number, unit, _ := strings.Cut(text, " ")
	rate, err := strconv.ParseFloat(number, 64)
	if err == nil && (!strings.HasPrefix(unit, "Gb/sec") || math.IsNaN(rate) || rate < 0 || math.IsInf(rate, 1)) {
		err = fmt.Errorf("parse rate %q: expected Gb/sec", text)
	}
	return rate * bytesPerGigabit, err
}

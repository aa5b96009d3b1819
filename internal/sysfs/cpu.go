package sysfs

import (
	"io/fs"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/podgauge/podgauge/internal/text"
)

// The labels of NVIDIA's CPUs, by the ACPI tables of their firmware:
//
//   - "Grace Power Socket 0": power_meter
//     (https://docs.nvidia.com/grace-perf-tuning-guide/power-thermals.html);
//     later firmware has "Total Power in uW socket 0"
//   - "Thermal Zone Skt0 CPU0": temperature, as DCGM reads it (modules/sysmon).
//     TLimit is a distance to the limit.
var (
	powerLabel       = regexp.MustCompile(`(?i)^([a-z ]{1,32}) power (?:in uw )?socket ([0-9]{1,3})$`)
	temperatureLabel = regexp.MustCompile(`^Thermal Zone Skt ?([0-9]{1,3}) ([A-Za-z0-9]{1,32})$`)
)

// readCPU reads the power and the temperatures of CPU sockets.
func (c *collection) readCPU() {
	const micro, milli = 1e-6, 1e-3
	for _, name := range c.list("class/hwmon") {
		for _, folder := range []string{"class/hwmon/" + name + "/device/", "class/hwmon/" + name + "/"} { // by kernel
			if label := powerLabel.FindStringSubmatch(c.label(folder + "power1_oem_info")); label != nil {
				sensor := text.SnakeCase(strings.ToLower(label[1]))
				c.addSensor(folder+"power1_average", micro, Sensor{
					Metric: "podgauge_cpu_power_watts", Socket: label[2], Sensor: sensor,
				})
				break
			}
		}
	}
	for _, name := range c.list("class/thermal") {
		folder := "class/thermal/" + name + "/"
		label := temperatureLabel.FindStringSubmatch(c.label(folder + "device/description"))
		if label != nil && label[2] != "TLimit" {
			c.addSensor(folder+"temp", milli, Sensor{
				Metric: "podgauge_cpu_temperature_celsius", Socket: label[1], Sensor: strings.ToLower(label[2]),
			})
		}
	}
}

// label returns the content of a file that other hardware lacks.
func (c *collection) label(file string) string {
	if _, err := fs.Stat(c.root, file); err != nil {
		return ""
	}
	label, err := c.file(file)
	if err != nil {
		c.miss(err)
	}
	return label
}

// addSensor adds a sensor, unless an earlier one has the same name.
func (c *collection) addSensor(file string, scale float64, s Sensor) {
	if slices.ContainsFunc(c.reading.Sensors, func(o Sensor) bool { o.Value = 0; return o == s }) {
		return
	}
	content, err := c.file(file)
	value := int64(0)
	if err == nil {
		value, err = strconv.ParseInt(content, 10, 64)
	}
	if err != nil {
		c.miss(err)
		return
	}
	s.Value = float64(value) * scale
	c.reading.Sensors = append(c.reading.Sensors, s)
}

package doctor_test

import (
	"os"

	"github.com/podgauge/podgauge/internal/doctor"
	"github.com/podgauge/podgauge/plugin/response"
	"github.com/podgauge/podgauge/test/helpers/require"
)

// defaultRuntimeConfig is the file that nvidia-ctk writes: values in comments are defaults.
const defaultRuntimeConfig = `#accept-nvidia-visible-devices-as-volume-mounts = false
#accept-nvidia-visible-devices-envvar-when-unprivileged = true
disable-require = false

[nvidia-container-cli]
environment = []

[nvidia-container-runtime]
mode = "auto"
accept-nvidia-visible-devices-envvar-when-unprivileged = false
`

var runtimeCases = []findingCase{
	{check: "runtime", status: doctor.StatusOK, message: "host/etc/nvidia-container-runtime/config.toml: containers cannot choose", change: func(*doctorFixture) {}},
	{check: "runtime", status: doctor.StatusSkipped, message: "simulated", change: func(s *doctorFixture) { s.Driver = nil }},
	{check: "runtime", status: doctor.StatusSkipped, message: "unknown: etc/nvidia-container-runtime/config.toml of the node is not visible", change: func(s *doctorFixture) {
		require.NoError(s, os.RemoveAll(s.dir+"/host"))
	}},
	{check: "runtime", status: doctor.StatusSkipped, message: "unknown", change: func(s *doctorFixture) { s.mountInContainer() }},
	{check: "runtime", status: doctor.StatusOK, message: "cannot choose", change: func(s *doctorFixture) { s.mountInContainer(s.dir + "/host") }},
	{check: "runtime", status: doctor.StatusWarning, message: "accepts NVIDIA_VISIBLE_DEVICES", fix: "CDI", change: func(s *doctorFixture) {
		s.writeRuntimeConfig("etc/nvidia-container-runtime", defaultRuntimeConfig)
	}},
	{check: "runtime", status: doctor.StatusWarning, message: "accepts NVIDIA_VISIBLE_DEVICES", fix: "when-unprivileged = false", change: func(s *doctorFixture) {
		s.writeRuntimeConfig("etc/nvidia-container-runtime", "")
		s.DeviceListStrategies = []response.DeviceListStrategy{"envvar"}
	}},
	{check: "runtime", status: doctor.StatusWarning, message: "toolkit/.config/nvidia-container-runtime/config.toml accepts", change: func(s *doctorFixture) {
		s.writeRuntimeConfig("usr/local/nvidia/toolkit/.config/nvidia-container-runtime", "accept-nvidia-visible-devices-envvar-when-unprivileged = true")
	}},
	{check: "runtime", status: doctor.StatusFailure, message: "rejects the device list strategy envvar", fix: "--device-list-strategy", change: func(s *doctorFixture) {
		s.DeviceListStrategies = []response.DeviceListStrategy{"envvar"}
	}},
	{check: "runtime", status: doctor.StatusOK, message: "cannot choose", change: func(s *doctorFixture) {
		s.DeviceListStrategies, s.DevicePlugin = []response.DeviceListStrategy{"envvar"}, false
	}},
	{check: "runtime", status: doctor.StatusFailure, message: "rejects the device list strategy volume-mounts", change: func(s *doctorFixture) {
		s.writeRuntimeConfig("etc/nvidia-container-runtime", defaultRuntimeConfig)
		s.DeviceListStrategies = []response.DeviceListStrategy{"volume-mounts"}
	}},
	{check: "runtime", status: doctor.StatusOK, message: "cannot choose", change: func(s *doctorFixture) {
		s.DeviceListStrategies = []response.DeviceListStrategy{"volume-mounts"}
		s.writeRuntimeConfig("etc/nvidia-container-runtime", "accept-nvidia-visible-devices-envvar-when-unprivileged=false # no\n"+
			"  accept-nvidia-visible-devices-as-volume-mounts  =  true\n[x]\naccept-nvidia-visible-devices-as-volume-mounts = false\n")
	}},
}

package exporter

import (
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// registerRuntimeMetrics registers the metrics of the Go runtime and of the process. Client_golang's collectors cost more than a scrape of
// eight GPUs, so the families of the sets have cheap functions: a system call, and a line of /proc.
func registerRuntimeMetrics(registry *prometheus.Registry, filter FamilyFilter) {
	if c := collectors.NewGoCollector(); filter.addsAny(c) {
		registry.MustRegister(c)
	}
	if c := collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}); filter.addsAny(c) {
		registry.MustRegister(c)
		return
	}
	if opts := (prometheus.CounterOpts{Name: "process_cpu_seconds_total", Help: "Total user and system CPU time spent in seconds."}); filter.Matches(opts.Name) {
		registry.MustRegister(prometheus.NewCounterFunc(opts, processCPU))
	}
	if opts := (prometheus.GaugeOpts{Name: "process_resident_memory_bytes", Help: "Resident memory size in bytes."}); filter.Matches(opts.Name) {
		registry.MustRegister(prometheus.NewGaugeFunc(opts, processResident))
	}
}

// processCPU returns the CPU time of the process in seconds.
func processCPU() float64 {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u) // fails for invalid arguments only
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()).Seconds()
}

// processResident returns the resident memory of the process in bytes; 0 without /proc.
func processResident() float64 {
	var size, resident int
	text, _ := os.ReadFile("/proc/self/statm")
	_, _ = fmt.Sscan(string(text), &size, &resident) // pages, and 0 for an empty text
	return float64(resident * os.Getpagesize())
}

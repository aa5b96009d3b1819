package e2e

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/podgauge/podgauge/test/e2e/node"
)

// metricsScrape is a parsed response of /metrics.
type metricsScrape struct {
	series     map[string][]scrapedSample // by name
	collection timeSpan                   // of podgauge's collection; may be zero
	duration   time.Duration
}

type timeSpan struct{ begin, end time.Time }

// scrapedSample is a sample of a scrape.
type scrapedSample struct {
	Labels seriesLabels
	Value  float64
}

// seriesLabels contains all or some labels of a series.
type seriesLabels = map[string]string

func (d *podgaugeProcess) get(ctx context.Context, path string) (io.ReadCloser, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, d.n.URL(d.port)+path, nil)
	if err != nil {
		return nil, err
	}
	response, err := d.client.Do(r)
	if err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusOK {
		body, _ := io.ReadAll(response.Body)
		response.Body.Close()
		return nil, fmt.Errorf("%s: %s: %s", path, response.Status, body)
	}
	return response.Body, nil
}

// scrape requests and parses /metrics.
func (d *podgaugeProcess) scrape(ctx context.Context) (metricsScrape, error) {
	begin := time.Now()
	body, err := d.get(ctx, "/metrics")
	if err != nil {
		return metricsScrape{}, err
	}
	defer body.Close()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(body)
	if err != nil {
		return metricsScrape{}, fmt.Errorf("parse the scrape: %w", err)
	}
	s := metricsScrape{series: map[string][]scrapedSample{}, duration: time.Since(begin)}
	for name, family := range families {
		for _, m := range family.Metric {
			s.add(name, m)
		}
	}
	collectionBegin, err := s.value("podgauge_collection_begin_timestamp_seconds", nil)
	if err != nil {
		return s, nil
	}
	collectionEnd, err := s.value("podgauge_collection_end_timestamp_seconds", nil)
	s.collection = timeSpan{unixTime(collectionBegin), unixTime(collectionEnd)}
	return s, err
}

func (s metricsScrape) add(name string, m *dto.Metric) {
	all := seriesLabels{}
	for _, pair := range m.Label {
		all[pair.GetName()] = pair.GetValue()
	}
	addSample := func(name string, value float64) {
		s.series[name] = append(s.series[name], scrapedSample{Labels: all, Value: value})
	}
	switch {
	case m.Gauge != nil:
		addSample(name, m.Gauge.GetValue())
	case m.Counter != nil:
		addSample(name, m.Counter.GetValue())
	case m.Histogram != nil:
		addSample(name+"_count", float64(m.Histogram.GetSampleCount()))
		addSample(name+"_sum", m.Histogram.GetSampleSum())
	}
}

func unixTime(seconds float64) time.Time {
	whole, fraction := math.Modf(seconds)
	return time.Unix(int64(whole), int64(fraction*1e9))
}

// findSamples returns the samples with these labels.
func findSamples(samples []scrapedSample, with seriesLabels) []scrapedSample {
	found := []scrapedSample{}
	for _, sample := range samples {
		if hasLabels(sample.Labels, with) {
			found = append(found, sample)
		}
	}
	return found
}

func hasLabels(all, some seriesLabels) bool {
	for name, value := range some {
		if all[name] != value {
			return false
		}
	}
	return true
}

// value returns the value of a family's only series with these labels.
func (s metricsScrape) value(name string, with seriesLabels) (float64, error) {
	found := findSamples(s.series[name], with)
	if len(found) != 1 {
		return 0, fmt.Errorf("number of series %s%v: got %d, want 1", name, with, len(found))
	}
	return found[0].Value, nil
}

// wantValue returns an error unless a family's only series with these labels has this value.
func (s metricsScrape) wantValue(want float64, name string, with seriesLabels) error {
	got, err := s.value(name, with)
	if err == nil && got != want {
		err = fmt.Errorf("%s%v: got %v, want %v", name, with, got, want)
	}
	return err
}

// wantCount returns an error unless a family has this number of series with these labels.
func (s metricsScrape) wantCount(want int, name string, with seriesLabels) error {
	if found := findSamples(s.series[name], with); len(found) != want {
		return fmt.Errorf("number of series %s%v: got %d, want %d: %v", name, with, len(found), want, found)
	}
	return nil
}

// sum returns the sum of a family's series with these labels.
func (s metricsScrape) sum(name string, with seriesLabels) (sum float64) {
	for _, sample := range findSamples(s.series[name], with) {
		sum += sample.Value
	}
	return sum
}

// scrapeUntil scrapes until check accepts a scrape, and returns that scrape.
func (d *podgaugeProcess) scrapeUntil(t *testing.T, condition string, check func(metricsScrape) error) metricsScrape {
	t.Helper()
	var s metricsScrape
	await(t, condition, func(ctx context.Context) (err error) {
		if s, err = d.scrape(ctx); err != nil {
			return err
		}
		return check(s)
	})
	return s
}

// nextScrape returns the first scrape with a collection that began after the call.
func (d *podgaugeProcess) nextScrape(t *testing.T) metricsScrape {
	t.Helper()
	called := time.Now()
	return d.scrapeUntil(t, "a scrape has a new collection", func(s metricsScrape) error {
		if !s.collection.begin.After(called) {
			return fmt.Errorf("begin of the collection: got %s, want after %s", s.collection.begin, called)
		}
		return nil
	})
}

// ownerFamilies are examples of families with owner labels, of each kind. They exist for each device whose owner is known.
var ownerFamilies = []string{"nvidia_gpu_healthy", "nvidia_gpu_allocated", "nvidia_gpu_power_watts", "nvidia_gpu_energy_joules_total"}

// isDeviceFamily reports whether a family is about the device itself: its owner labels are empty even if the device is allocated.
func isDeviceFamily(name string) bool {
	names := []string{"nvidia_gpu_info", "nvidia_gpu_up", "nvidia_gpu_stalled", "nvidia_gpu_xid_errors_total", "nvidia_gpu_xid_last_timestamp_seconds"}
	health := strings.HasPrefix(name, "nvidia_gpu_health_") || strings.HasPrefix(name, "nvidia_gpu_incident")
	return health || slices.Contains(names, name) || strings.HasPrefix(name, unattributedPrefix) || deviceFamilies()[name]
}

// deviceFamilies returns the families of the device in docs/reference/metrics.md, a contract: faults, limits, modes.
var deviceFamilies = sync.OnceValue(func() map[string]bool {
	page, err := os.ReadFile("../../docs/reference/metrics.md")
	if err != nil {
		panic(err)
	}
	families := map[string]bool{}
	for line := range strings.Lines(string(page)) {
		// |`name`<br>Help.|device-gauge|…
		cells := strings.Split(line, "|")
		if len(cells) < 3 {
			continue
		}
		if name, _, row := strings.Cut(strings.TrimPrefix(cells[1], "`"), "`<br>"); row && strings.HasPrefix(cells[2], "device-") {
			families[name] = true
		}
	}
	if len(families) == 0 {
		panic("docs/reference/metrics.md has no family of the device")
	}
	return families
})

// Families with the owners of ended allocations.
const (
	familyLastSeen          = "nvidia_gpu_allocation_last_seen_timestamp_seconds"
	familyDeviceFailures    = "nvidia_gpu_allocation_device_failures_total"
	familyApplicationErrors = "nvidia_gpu_allocation_application_errors_total"
)

// checkOwners returns an error unless a scrape has these owners of GPUs. GPUs without an owner must be idle.
func (s metricsScrape) checkOwners(ids []string, owners map[string]node.OwnerKey) error {
	wrong := []error{s.checkNoWrongOwner(owners)}
	for _, id := range ids {
		for _, family := range ownerFamilies {
			wrong = append(wrong, s.wantCount(1, family, seriesLabels{"uuid": id}))
		}
		want := 0
		if owners[id] != (node.OwnerKey{}) {
			want = 1
		}
		wrong = append(wrong, s.wantCount(want, "nvidia_gpu_allocation_info", seriesLabels{"uuid": id}))
	}
	return errors.Join(wrong...)
}

// checkOwnersOfAllocated returns an error unless exactly these GPUs and MIG devices are allocated, and no series has a wrong owner.
func (s metricsScrape) checkOwnersOfAllocated(owners map[string]node.OwnerKey) error {
	wrong := []error{s.checkNoWrongOwner(owners), s.wantCount(len(owners), "nvidia_gpu_allocation_info", nil)}
	if got := s.sum("nvidia_gpu_allocated", nil); got != float64(len(owners)) {
		wrong = append(wrong, fmt.Errorf("allocated devices: got %v, want %d", got, len(owners)))
	}
	for id, owner := range owners {
		with := ownerLabels(owner)
		with["device_id"] = id
		wrong = append(wrong, s.wantValue(1, "nvidia_gpu_allocation_info", with))
	}
	return errors.Join(wrong...)
}

// checkNoWrongOwner returns an error if a series has a wrong owner, or no owner although the GPU or MIG device has one.
func (s metricsScrape) checkNoWrongOwner(owners map[string]node.OwnerKey) error {
	wrong := []error{}
	for _, name := range slices.Sorted(maps.Keys(s.series)) {
		ended := strings.HasPrefix(name, "nvidia_gpu_allocation_") && name != "nvidia_gpu_allocation_info"
		if !strings.HasPrefix(name, "nvidia_gpu_") || ended {
			continue
		}
		for _, sample := range s.series[name] {
			want := owners[cmp.Or(sample.Labels["mig_uuid"], sample.Labels["uuid"])]
			if isDeviceFamily(name) {
				want = node.OwnerKey{}
			}
			if err := checkOwnerLabels(sample, want); err != nil {
				wrong = append(wrong, fmt.Errorf("%s: %w", name, err))
			}
		}
	}
	return errors.Join(wrong...)
}

// checkNoOwnerExceptInfo returns an error if a series has an owner, except for series of allocations and of containers.
func (s metricsScrape) checkNoOwnerExceptInfo() error {
	others := metricsScrape{series: map[string][]scrapedSample{}}
	for name, samples := range s.series {
		if name != "nvidia_gpu_allocation_info" && !strings.HasPrefix(name, containerPrefix) {
			others.series[name] = samples
		}
	}
	return others.checkNoWrongOwner(nil)
}

// checkOwnerLabels returns an error unless a sample has the labels of this owner. Empty labels must exist.
func checkOwnerLabels(sample scrapedSample, want node.OwnerKey) error {
	for name, value := range ownerLabels(want) {
		if got, ok := sample.Labels[name]; !ok || got != value {
			return fmt.Errorf("labels: got %v, want %s %q", sample.Labels, name, value)
		}
	}
	return nil
}

func ownerLabels(owner node.OwnerKey) seriesLabels {
	return seriesLabels{"namespace": owner.Namespace, "pod": owner.Pod, "container": owner.Container}
}

// watch checks a condition repeatedly in the background.
type watch struct {
	cancel context.CancelFunc
	done   sync.WaitGroup
	// The results; read only after done.
	count   int
	longest time.Duration // of scrapes
	wrong   []string
}

// startWatch calls check at an interval until stop is called.
func startWatch(t *testing.T, interval time.Duration, check func(context.Context) error) *watch {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	w := &watch{cancel: cancel}
	w.done.Go(func() {
		tick := time.NewTicker(interval)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			err := check(ctx)
			if ctx.Err() != nil {
				return
			}
			w.count++
			if err != nil {
				w.wrong = append(w.wrong, fmt.Sprintf("%s: %v", time.Now().Format(time.StampMilli), err))
			}
		}
	})
	t.Cleanup(func() { w.cancel(); w.done.Wait() })
	return w
}

// stop ends the watch and returns the number of checks. The test fails if a check failed.
func (w *watch) stop(t *testing.T) int {
	t.Helper()
	w.cancel()
	w.done.Wait()
	if len(w.wrong) > 0 {
		t.Errorf("failed checks: got %d of %d:\n%s", len(w.wrong), w.count, strings.Join(w.wrong[:min(3, len(w.wrong))], "\n"))
	}
	return w.count
}

// watchScrapes scrapes podgauge at an interval and checks each scrape.
func watchScrapes(t *testing.T, d *podgaugeProcess, interval time.Duration, check func(metricsScrape) error) *watch {
	t.Helper()
	var w *watch
	started := make(chan struct{})
	w = startWatch(t, interval, func(ctx context.Context) error {
		<-started
		s, err := d.scrape(ctx)
		if err != nil {
			return err
		}
		w.longest = max(w.longest, s.duration)
		return check(s)
	})
	close(started)
	return w
}

// watchNotAllocatable checks that the kubelet never reports a GPU as allocatable. Requests to a stopped kubelet fail.
func watchNotAllocatable(t *testing.T, n *node.RealNode, id string) *watch {
	t.Helper()
	return startWatch(t, 20*time.Millisecond, func(ctx context.Context) error {
		if ids, _ := n.Allocatable(ctx, gpuResource); slices.Contains(ids, id) {
			return fmt.Errorf("allocatable GPUs: got %q", ids)
		}
		return nil
	})
}

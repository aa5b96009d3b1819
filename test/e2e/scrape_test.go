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

// metricsScrape is one answer of /metrics.
type metricsScrape struct {
	series     map[string][]scrapedSample // by name
	collection timeSpan                   // zero where it has none
	duration   time.Duration
}

// scrapedSample is a series of a scrape.
type scrapedSample struct {
	Labels seriesLabels
	Value  float64
}

// seriesLabels of a series, or some of them.
type seriesLabels = map[string]string

func (d *podgaugeProcess) get(ctx context.Context, path string) (io.ReadCloser, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, d.url+path, nil)
	if err != nil {
		return nil, err
	}
	answer, err := d.client.Do(r)
	if err != nil {
		return nil, err
	}
	if answer.StatusCode != http.StatusOK {
		body, _ := io.ReadAll(answer.Body)
		answer.Body.Close()
		return nil, fmt.Errorf("%s: %s: %s", path, answer.Status, body)
	}
	return answer.Body, nil
}

// scrape asks once.
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
	begun, err := s.value("podgauge_collection_begin_timestamp_seconds", nil)
	if err != nil {
		return s, nil
	}
	landed, err := s.value("podgauge_collection_end_timestamp_seconds", nil)
	s.collection = timeSpan{unixTime(begun), unixTime(landed)}
	return s, err
}

func (s metricsScrape) add(name string, m *dto.Metric) {
	all := seriesLabels{}
	for _, pair := range m.Label {
		all[pair.GetName()] = pair.GetValue()
	}
	put := func(name string, value float64) {
		s.series[name] = append(s.series[name], scrapedSample{Labels: all, Value: value})
	}
	switch {
	case m.Gauge != nil:
		put(name, m.Gauge.GetValue())
	case m.Counter != nil:
		put(name, m.Counter.GetValue())
	case m.Histogram != nil:
		put(name+"_count", float64(m.Histogram.GetSampleCount()))
		put(name+"_sum", m.Histogram.GetSampleSum())
	}
}

func unixTime(seconds float64) time.Time {
	whole, fraction := math.Modf(seconds)
	return time.Unix(int64(whole), int64(fraction*1e9))
}

// findSamples returns the series of a name that have these labels.
func findSamples(samples []scrapedSample, with seriesLabels) []scrapedSample {
	found := []scrapedSample{}
	for _, sample := range samples {
		if hasLabels(sample.Labels, with) {
			found = append(found, sample)
		}
	}
	return found
}

// labelsOf returns the labels of Prometheus' series.
func labelsOf(m model.Metric) seriesLabels {
	all := seriesLabels{}
	for name, value := range m {
		all[string(name)] = string(value)
	}
	return all
}

func hasLabels(all, some seriesLabels) bool {
	for name, value := range some {
		if all[name] != value {
			return false
		}
	}
	return true
}

// value of the only series of a name that has these labels.
func (s metricsScrape) value(name string, with seriesLabels) (float64, error) {
	found := findSamples(s.series[name], with)
	if len(found) != 1 {
		return 0, fmt.Errorf("%s%v is there %d times", name, with, len(found))
	}
	return found[0].Value, nil
}

// wantValue says why the only series of a name that has these labels does not have this value.
func (s metricsScrape) wantValue(want float64, name string, with seriesLabels) error {
	got, err := s.value(name, with)
	if err == nil && got != want {
		err = fmt.Errorf("%s%v is %v, not %v", name, with, got, want)
	}
	return err
}

// sum of a name's series with these labels.
func (s metricsScrape) sum(name string, with seriesLabels) (sum float64) {
	for _, sample := range findSamples(s.series[name], with) {
		sum += sample.Value
	}
	return sum
}

// scrapeUntil scrapes until an answer is as it should be, and returns that one.
func (d *podgaugeProcess) scrapeUntil(ctx context.Context, t *testing.T, what string, check func(metricsScrape) error) metricsScrape {
	t.Helper()
	var s metricsScrape
	await(ctx, t, what, func(ctx context.Context) (err error) {
		if s, err = d.scrape(ctx); err != nil {
			return err
		}
		return check(s)
	})
	return s
}

// nextScrape is the next scrape: the first one whose flight began after the call.
func (d *podgaugeProcess) nextScrape(ctx context.Context, t *testing.T) metricsScrape {
	t.Helper()
	event := time.Now()
	return d.scrapeUntil(ctx, t, "the next scrape", func(s metricsScrape) error {
		if !s.collection.begin.After(event) {
			return fmt.Errorf("its flight began at %s", s.collection.begin)
		}
		return nil
	})
}

// ownerFamilies carry the holder's labels, and are there for every device whose holder is known; one of a kind: health, allocation, a gauge and
// a counter.
var ownerFamilies = []string{"nvidia_gpu_healthy", "nvidia_gpu_allocated", "nvidia_gpu_power_watts", "nvidia_gpu_energy_joules_total"}

// isDeviceFamily are families of the device itself, which have no holder whoever holds it.
func isDeviceFamily(name string) bool {
	own := []string{"nvidia_gpu_info", "nvidia_gpu_up", "nvidia_gpu_stalled", "nvidia_gpu_xid_errors_total", "nvidia_gpu_xid_last_timestamp_seconds"}
	stands := strings.HasPrefix(name, "nvidia_gpu_health_") || strings.HasPrefix(name, "nvidia_gpu_incident")
	return stands || slices.Contains(own, name) || strings.HasPrefix(name, unattributedPrefix) || deviceFamilies()[name]
}

// deviceFamilies are those that docs/reference/metrics.md, which is a contract, says to be of the device: faults, limits, modes.
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

// Families that name holders of the past.
const (
	familyLastSeen          = "nvidia_gpu_allocation_last_seen_timestamp_seconds"
	familyDeviceFailures    = "nvidia_gpu_allocation_device_failures_total"
	familyLastDeviceFailure = "nvidia_gpu_allocation_device_failure_last_timestamp_seconds"
)

// checkOwners says where the scrape differs from the truth: held are those of these GPUs that are held, the others are idle.
func (s metricsScrape) checkOwners(ids []string, owners map[string]node.OwnerKey) error {
	wrong := []error{}
	for _, id := range ids {
		for _, family := range ownerFamilies {
			if n := len(findSamples(s.series[family], seriesLabels{"uuid": id})); n != 1 {
				wrong = append(wrong, fmt.Errorf("%s of %s is there %d times", family, id, n))
			}
		}
		want := 0
		if owners[id] != (node.OwnerKey{}) {
			want = 1
		}
		if n := len(findSamples(s.series["nvidia_gpu_allocation_info"], seriesLabels{"uuid": id})); n != want {
			wrong = append(wrong, fmt.Errorf("nvidia_gpu_allocation_info of %s is there %d times", id, n))
		}
	}
	return errors.Join(append(wrong, s.checkNoWrongOwner(owners))...)
}

// checkNoWrongOwner says which series name a holder that is not, or none where there is one. held are GPUs and slices.
func (s metricsScrape) checkNoWrongOwner(owners map[string]node.OwnerKey) error {
	wrong := []error{}
	for _, name := range slices.Sorted(maps.Keys(s.series)) {
		if !strings.HasPrefix(name, "nvidia_gpu_") || name == familyLastSeen || name == familyDeviceFailures || name == familyLastDeviceFailure {
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

// checkOwnerLabels says whose labels a scraped series has, where it is not these holder's. Empty ones have to be there.
func checkOwnerLabels(sample scrapedSample, want node.OwnerKey) error {
	for name, value := range ownerLabels(want) {
		if got, there := sample.Labels[name]; !there || got != value {
			return fmt.Errorf("%v, which has %s %q", sample.Labels, name, value)
		}
	}
	return nil
}

func ownerLabels(h node.OwnerKey) seriesLabels {
	return seriesLabels{"namespace": h.Namespace, "pod": h.Pod, "container": h.Container}
}

package dashboards

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/podgauge/podgauge/test/helpers/require"
)

// Some rules evaluate hours. promtool creates blocks for this time: constant series of a node's first scrape, except for the series of
// backfillRules.
const (
	backfillDuration = 3*time.Hour + 10*time.Minute
	backfillStep     = 2 * time.Minute
)

// backfillRule changes the past values of series with a prefix. The value is a function of the age.
type backfillRule struct {
	series string // prefix
	value  func(ago time.Duration) string
}

// lastGPU is the node's last whole GPU.
const lastGPU = "GPU-0000a106-5eed-4000-8000-000000000006"

// backfillRules are the past values for alerts that evaluate hours.
var backfillRules = []backfillRule{
	// PodgaugeDeviceFlapping: a device that recovered four times within three hours.
	{`nvidia_gpu_health_flaps_total{`, func(ago time.Duration) string {
		return fmt.Sprint(int((backfillDuration - ago) / (45 * time.Minute)))
	}},
}

// backfill creates blocks of a node's past in data.
func backfill(t *testing.T, dir, data string, n *simNode, scrape string, now time.Time) (samples int) {
	t.Helper()
	name := filepath.Join(dir, "past.txt")
	file, err := os.Create(name)
	require.NoError(t, err)
	defer file.Close()
	text := bufio.NewWriter(file)
	series := seriesOf(scrape, n)
	for ago := backfillDuration; ago > 0; ago -= backfillStep {
		for _, s := range series {
			fmt.Fprintf(text, "%s %s %d\n", s.name, s.value(ago), now.Add(-ago).Unix())
			samples++
		}
	}
	fmt.Fprintln(text, "# EOF")
	require.NoError(t, text.Flush())
	if out, err := exec.Command("promtool", "tsdb", "create-blocks-from", "openmetrics", name, data).CombinedOutput(); err != nil {
		t.Fatalf("promtool: %v\n%s", err, out)
	}
	return samples
}

// backfillSeries is a series of the past.
type backfillSeries struct {
	name, current string
	rule          *backfillRule
}

func (w backfillSeries) value(ago time.Duration) string {
	if w.rule == nil {
		return w.current
	}
	return w.rule.value(ago)
}

// seriesOf returns the series of a scrape with their target labels.
func seriesOf(scrape string, n *simNode) (all []backfillSeries) {
	for line := range strings.Lines(scrape) {
		end := strings.LastIndex(line, " ")
		if strings.HasPrefix(line, "#") || end < 0 {
			continue
		}
		name, value := withTargetLabels(line[:end], n), strings.TrimSpace(line[end:])
		all = append(all, backfillSeries{name, value, nil})
		for i := range backfillRules {
			p := &backfillRules[i]
			if strings.HasPrefix(line, p.series) && strings.Contains(line, `uuid="`+lastGPU+`"`) {
				all[len(all)-1].rule = p
			}
		}
	}
	return all
}

// withTargetLabels returns a series with the labels of its target.
func withTargetLabels(series string, n *simNode) string {
	target := fmt.Sprintf(`cluster=%q,node=%q,instance=%q,job="podgauge"`, n.cluster, n.name, n.address)
	name, labels, ok := strings.Cut(series, "{")
	if !ok {
		return name + "{" + target + "}"
	}
	return name + "{" + target + "," + labels
}

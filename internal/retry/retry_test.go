package retry

import (
	"testing"
	"time"

	"github.com/podgauge/podgauge/test/bubble"
	"github.com/podgauge/podgauge/test/helpers/expect"
)

func TestBackoff(t *testing.T) {
	b := Backoff{Min: time.Second, Max: 5 * time.Second}
	var got []time.Duration
	for range 4 {
		got = append(got, b.Next())
	}
	b.Reset()
	got = append(got, b.Next())
	want := []time.Duration{time.Second, 2 * time.Second, 4 * time.Second, 5 * time.Second, time.Second}
	expect.EqualSlices(t, got, want, "delays")
}

func TestSpread(t *testing.T) {
	different := map[time.Duration]bool{}
	for range 100 {
		d := Spread(time.Second)
		different[d] = true
		if d < time.Second/2 || d >= 3*time.Second/2 {
			t.Errorf("got %s", d)
		}
	}
	if len(different) < 90 || Spread(0) != 0 {
		t.Errorf("got %d different delays, and %s for 0", len(different), Spread(0))
	}
}

func TestAligned(t *testing.T) {
	bubble.Test(t, func(t *testing.T) { // begins on a whole second
		for _, c := range []struct{ after, d, want time.Duration }{
			{0, time.Second, time.Second},
			{400 * time.Microsecond, 2 * time.Second, 2*time.Second - 400*time.Microsecond},
			{time.Second - time.Millisecond, 10 * time.Second, 10*time.Second + time.Millisecond},
			{500 * time.Millisecond, 10 * time.Second, 9500 * time.Millisecond},
			{950 * time.Millisecond, time.Second, 1050 * time.Millisecond},
		} {
			time.Sleep(time.Until(time.Now().Truncate(time.Second).Add(time.Second)) + c.after)
			expect.Equal(t, Aligned(c.d), c.want, c.after, "after a second,", c.d)
		}
	})
}

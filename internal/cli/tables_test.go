package cli

import (
	"testing"
	"time"
)

func TestAgo(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	for d, want := range map[time.Duration]string{
		-time.Hour: "now", 0: "now", 999 * time.Millisecond: "now", time.Second: "1 s ago", 59 * time.Second: "59 s ago", time.Minute: "1 min ago",
		59*time.Minute + 59*time.Second: "59 min ago", time.Hour: "1 h ago", 47 * time.Hour: "47 h ago", 48 * time.Hour: "2 days ago", 9000 * time.Hour: "375 days ago",
	} {
		if got := Ago(now, now.Add(-d)); got != want {
			t.Errorf("%s: got %s, want %s", d, got, want)
		}
	}
	if got := Ago(now, time.Time{}); got != "-" {
		t.Errorf("never: got %s", got)
	}
}

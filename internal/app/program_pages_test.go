package app

import (
	"os"
	"regexp"
	"strconv"
	"testing"
)

// TestDropProgramPages: pages of files are a large part of the resident memory, and few of them are mapped again.
func TestDropProgramPages(t *testing.T) {
	residentKilobytes := func() int {
		status, err := os.ReadFile("/proc/self/status")
		if err != nil {
			t.Fatal(err)
		}
		kilobytes, err := strconv.Atoi(regexp.MustCompile(`RssFile:\s+(\d+) kB`).FindStringSubmatch(string(status))[1])
		if err != nil {
			t.Fatal(err)
		}
		return kilobytes
	}
	_ = residentKilobytes() // maps what it needs itself
	before := residentKilobytes()
	if err := dropProgramPages(); err != nil {
		t.Fatal(err)
	}
	if after := residentKilobytes(); after > before*3/4 {
		t.Errorf("%d kB of files are resident, %d kB before", after, before)
	}
}

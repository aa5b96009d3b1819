package app

import (
	"os"
	"regexp"
	"strconv"
	"testing"
)

// TestDropProgramPages checks that pages of the program file, a large part of the resident memory, are dropped. Few of them are mapped again.
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
	_ = residentKilobytes() // maps the pages that the function needs
	before := residentKilobytes()
	if err := dropProgramPages(); err != nil {
		t.Fatal(err)
	}
	if after := residentKilobytes(); after > before*3/4 {
		t.Errorf("resident file pages: got %d kB, before %d kB", after, before)
	}
}

package main

import (
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/podgauge/podgauge/test/helpers/program"
)

// TestTimesAreInUTC checks the JSON of a process in another time zone: docs/reference/api.md promises UTC.
func TestTimesAreInUTC(t *testing.T) {
	p := program.Start(t, []string{"TZ=Asia/Tokyo"})
	response, err := http.Get(strings.Replace(p.URL, "/metrics", "/api/v1/devices", 1))
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil || !regexp.MustCompile(`^\{"at":"[^"]+Z"`).Match(body) || strings.Contains(string(body), "+09:00") {
		t.Errorf("got error %v, body %s", err, body)
	}
}

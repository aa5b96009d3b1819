// Package programs_test downloads programs.
package programs_test

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/podgauge/podgauge/test/e2e/programs"
)

// TestDownload downloads a program with its checksum. Without the program or
// with another checksum, the program is built, which fails here.
func TestDownload(t *testing.T) {
	t.Setenv("GOPROXY", "off")
	const program = "#!/bin/sh\n"
	sum := fmt.Sprintf("%x", sha256.Sum256([]byte(program)))
	for _, c := range []struct {
		files   map[string]string
		log     string
		install bool
	}{
		{map[string]string{"/kubelet": program, "/kubelet.sha256": sum}, "", true},
		{map[string]string{"/kubelet": program + "x", "/kubelet.sha256": sum + "\n"}, "has SHA-256 ", false},
		{map[string]string{"/kubelet": program}, "/kubelet.sha256: 404 Not Found", false},
		{map[string]string{"/kubelet.sha256": sum}, "/kubelet: 404 Not Found", false},
		{nil, "connection refused", false},
	} {
		t.Setenv("PODGAUGE_E2E_CACHE", t.TempDir())
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			text, ok := c.files[r.URL.Path]
			if !ok {
				http.NotFound(w, r)
			}
			fmt.Fprint(w, text)
		}))
		if c.files == nil {
			server.Close()
		}
		p := programs.BuildSpec{
			Name: "kubelet", Version: "v1", Module: "example.invalid/none", Packages: []string{"cmd/kubelet"}, Release: server.URL,
		}
		var log bytes.Buffer
		err := p.Build(t.Context(), &log)
		server.Close()
		if (err == nil) != c.install || !strings.Contains(log.String(), c.log) {
			t.Errorf("files %q: got error %v and log %q, want %q", c.files, err, log.String(), c.log)
		}
		name, err := p.Binary("kubelet")
		if (err == nil) != c.install {
			t.Errorf("files %q: binary: got error %v", c.files, err)
		}
		if got, err := os.ReadFile(name); c.install && (err != nil || string(got) != program) {
			t.Errorf("got %q and error %v, want %q", got, err, program)
		}
	}
}

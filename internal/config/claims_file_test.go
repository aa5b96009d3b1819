package config_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/config"
	"github.com/podgauge/podgauge/test/bubble"
	"github.com/podgauge/podgauge/test/helpers/background"
	"github.com/podgauge/podgauge/test/helpers/require"
	"github.com/podgauge/podgauge/test/helpers/testlog"
)

// TestClaimsFile checks that the claims follow the file, that an invalid line costs a log message and no other line,
// and that claims stay while the file cannot be read.
func TestClaimsFile(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var log testlog.Buffer
		path := filepath.Join(t.TempDir(), "admin-claims")
		f := config.NewClaimsFile(path, log.Logger())
		defer background.Run(t, f.Run)()
		time.Sleep(time.Second / 2) // the file is read on whole seconds
		for _, step := range []struct {
			content string // empty: no file; "/": a folder
			ignored string // of a/x, a/y and b/x
			logged  int    // new lines
		}{
			{"", "", 0},
			{"a/x/gpu.nvidia.com\n", "a/x", 0},
			{"a/x\n\nUpper\nb/*/gpu.*\n", "a/x b/x", 1},
			{"Upper\na/y/gpu.nvidia.com", "a/y", 0},
			{"/", "a/y", 1},
			{"Upper\na/y/gpu.nvidia.com\n", "a/y", 0},
			{strings.Repeat("a/x\n", 100_000), "a/y", 1},
			{"a/x/other.example.com\n", "", 0},
			{"a/x\n", "a/x", 0},
			{"", "", 0},
		} {
			require.NoError(t, os.RemoveAll(path))
			var err error
			switch step.content {
			case "":
			case "/":
				err = os.Mkdir(path, 0o700)
			default:
				err = os.WriteFile(path, []byte(step.content), 0o600)
			}
			require.NoError(t, err)
			before := log.Count("\n")
			time.Sleep(3 * time.Second)
			var ignored []string
			for _, claim := range []string{"a/x", "a/y", "b/x"} {
				namespace, name, _ := strings.Cut(claim, "/")
				if f.Claims().Ignores(namespace, name, "gpu.nvidia.com") {
					ignored = append(ignored, claim)
				}
			}
			if got := strings.Join(ignored, " "); got != step.ignored || log.Count("\n")-before != step.logged {
				t.Errorf("%.50q: got %q, want %q and %d lines in %s", step.content, got, step.ignored, step.logged, log.String())
			}
		}
	})
}

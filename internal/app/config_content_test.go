package app_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/podgauge/podgauge/internal/cli"
	"github.com/podgauge/podgauge/test/helpers/require"
)

// TestErrorsHideContent checks that no command prints a file that is not podgauge's: a user with pods/exec could read each file of the
// container.
func TestErrorsHideContent(t *testing.T) {
	dir := t.TempDir()
	config := filepath.Join(dir, "config.yaml")
	require.NoError(t, os.WriteFile(config, []byte("version: v1\nconfigs: {a: {}, b: {}}\n"), 0o600))
	for name, content := range map[string]string{
		"shadow":    "root:$6$SECRET$x:19000:0:99999:7:::\nbin:*:19000:0:99999:7:::\n",
		"duplicate": "root $6$SECRET: 1\nroot $6$SECRET: 2\n",
		"key":       "-----BEGIN EC PRIVATE KEY-----\nMHcCAQEEIB+SECRET/x==\n-----END EC PRIVATE KEY-----\n",
		"environ":   "TOKEN=SECRET\x00A=b\x00",
		"token":     "eyJhbGciOiJSUzI1NiJ9." + strings.Repeat("SECRET", 50) + ".x",
		"password":  "password: SECRET\nbasic_auth: {username: SECRET}\n",
	} {
		file := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(file, []byte(content), 0o600))
		for _, args := range [][]string{
			{"validate", file},
			{"validate", config, "--config-name-file=" + file},
			{"doctor", "--config-file=" + file},
			{"doctor", "--config-file=" + file, "--config-name-file=" + file},
			{"doctor", "--web.config.file=" + file},
			{"--web.listen-address=127.0.0.1:0", "--web.config.file=" + file},
			{"--web.listen-address=x", "--config-file=" + config, "--config-name-file=" + file},
			{"status", "--http.config.file=" + file},
		} {
			if out, errs, status := runCLI(t, args...); strings.Contains(out+errs, "SECRET") || status == cli.ExitOK || strings.Contains(out+errs, "panic") {
				t.Errorf("%v: got status %d, %s%s", args, status, out, errs)
			}
		}
	}
}

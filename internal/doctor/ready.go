package doctor

import (
	"context"
	"io"
	"net/http"
	"strings"
)

// checkReady asks the running podgauge whether it is ready.
func checkReady(ctx context.Context, e *examination) Finding {
	if e.ReadyURL == "" {
		return skipped("/readyz requires a certificate or password (--web.config.file): set --web.probe-address")
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, e.ReadyURL, http.NoBody)
	if err != nil {
		return skipped("%v", err)
	}
	response, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(request) // without a proxy
	if err != nil {
		return skipped("podgauge does not run: %v", err)
	}
	defer response.Body.Close() //nolint:errcheck // read
	body, _ := io.ReadAll(io.LimitReader(response.Body, 64<<10))
	lines := strings.Split(strings.TrimSpace(string(body)), "\n")
	switch {
	case response.StatusCode == http.StatusServiceUnavailable:
		return failure("%s", strings.Join(lines, "; "))
	case response.StatusCode != http.StatusOK || lines[0] != "ok":
		return skipped("%s is not podgauge's: status %d", e.ReadyURL, response.StatusCode)
	case len(lines) > 1:
		return warning("%s", strings.Join(lines[1:], "; ")).
			because("podgauge does not serve the resource until the other plugin is gone.").
			fixedBy("Remove the other device plugin from this node, or start podgauge with --take-over.")
	}
	return ok("podgauge is ready")
}

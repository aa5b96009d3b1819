package doctor

import (
	"context"
	"io"
	"net/http"
	"strings"
)

// checkReady asks the running podgauge whether it is ready.
func checkReady(ctx context.Context, r *report) Finding {
	if r.ReadyURL == "" {
		return skipped("/readyz requires a certificate or password (--web.config.file): set --web.probe-address")
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, r.ReadyURL, http.NoBody)
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
		return failure(strings.Join(lines, "; "), "Follow the fixes of the other checks. For a GPU that was removed on purpose, run podgauge device forget UUID.")
	case response.StatusCode != http.StatusOK || lines[0] != "ok":
		return skipped("%s is not podgauge's: status %d", r.ReadyURL, response.StatusCode)
	case len(lines) > 1:
		return warning(strings.Join(lines[1:], "; "), "Remove the other device plugin from this node, or start podgauge with --take-over.").
			because("podgauge does not serve the resource until the other plugin is gone.")
	}
	return ok("podgauge is ready")
}

package kubeapi_test

import (
	"maps"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/kubeapi"
	"github.com/podgauge/podgauge/test/helpers/apiserver"
)

// otherCA has signed no certificate of the tests.
const otherCA = `-----BEGIN CERTIFICATE-----
MIIBdTCCARugAwIBAgIUP7FW7//QptAFYbnzwWNKsijeuegwCgYIKoZIzj0EAwIw
EDEOMAwGA1UEAwwFb3RoZXIwHhcNMjYxMTIzMTQyMTU3WhcNMzYxMTIwMTQyMTU3
WjAQMQ4wDAYDVQQDDAVvdGhlcjBZMBMGByqGSM49AgEGCCqGSM49AwEHA0IABLJY
ETfonO2Nja+Rhyqny0QwqDeOjd+sSdYGnWaRRvitl9/j9kXAgcfyrwamL1F56xMd
2lisQaGEz3iyZID11gSjUzBRMB0GA1UdDgQWBBQ9dFXz5Js9EdXc7V5ieR1Cf2cu
uzAfBgNVHSMEGDAWgBQ9dFXz5Js9EdXc7V5ieR1Cf2cuuzAPBgNVHRMBAf8EBTAD
AQH/MAoGCCqGSM49BAMCA0gAMEUCIBuvqEXhFDWelzB7TcP9ptFx9Kmsy8Y9KNiz
jl5A2szTAiEA62XatdsxF8lpJ7CCdK5kIve4FHziN99q2dGqXkJ5+pk=
-----END CERTIFICATE-----
`

func TestInCluster(t *testing.T) {
	env := map[string]string{}
	lookup := func(name string) (string, bool) { v, ok := env[name]; return v, ok }
	if _, err := kubeapi.InCluster(lookup); err == nil {
		t.Error("no error outside a pod")
	}
	maps.Copy(env, map[string]string{"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"})
	o, err := kubeapi.InCluster(lookup)
	if err != nil || o.Server != "https://[fd00::1]:443" || !strings.HasSuffix(o.TokenFile, "/serviceaccount/token") {
		t.Errorf("got %+v, %v", o, err)
	}
}

func TestErrors(t *testing.T) {
	for _, test := range []struct {
		name, kind, body string
		want             string
	}{
		{"JSON", "application/json", `{"reason":"Forbidden","message":"pods is forbidden"}`, "429 pods is forbidden"},
		{"control characters", "application/json", `{"message":"a\u001b[31mb\n"}`, "429 a [31mb "},
		{"text", "text/plain", "overloaded", "429 Too Many Requests"},
		{"invalid JSON", "application/json", "{", "429 Too Many Requests"},
		{"JSON of a proxy", "application/json", `["overloaded"]`, "429 Too Many Requests"},
		{"long", "application/json", `{"message":"` + strings.Repeat("x", 2000) + `"}`, "429 " + strings.Repeat("x", 512)},
	} {
		c := serve(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", test.kind)
			w.Header().Set("Retry-After", "7")
			w.WriteHeader(http.StatusTooManyRequests)
			_, _ = w.Write([]byte(test.body))
		})
		_, err := c.Do(t.Context(), http.MethodGet, "/x", "", nil)
		if err == nil || err.Error() != "GET /x: API server: "+test.want || kubeapi.RetryAfter(err) != 7*time.Second {
			t.Errorf("%s: got %v, retry after %s", test.name, err, kubeapi.RetryAfter(err))
		}
	}
}

func TestLargeResponse(t *testing.T) {
	c := serve(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, 5<<20)) })
	if _, err := c.Do(t.Context(), http.MethodGet, "/x", "", nil); err == nil || !strings.Contains(err.Error(), "larger than") {
		t.Errorf("got %v", err)
	}
}

func TestRedirect(t *testing.T) {
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "https://example.com/", http.StatusFound)
	})
	if _, err := c.Do(t.Context(), http.MethodGet, "/x", "", nil); err == nil || !strings.Contains(err.Error(), "redirect") {
		t.Errorf("got %v", err)
	}
}

func TestRequests(t *testing.T) {
	s := apiserver.Start(t)
	c := s.Client()
	get := func() { c.Do(t.Context(), http.MethodGet, "/api/v1/pods", "", nil) } //nolint:errcheck // counted
	get()
	s.Reject(func(string, string) int { return http.StatusServiceUnavailable })
	get()
	get()
	s.Stop()
	get()
	s.SetToken("") // not sent
	get()
	if got, want := c.Requests(), map[string]float64{"200": 1, "403": 0, "503": 2, kubeapi.NoResponse: 2}; !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

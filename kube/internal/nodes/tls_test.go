package nodes_test

import (
	"context"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/web/api"
	"github.com/podgauge/podgauge/kube/internal/nodes"
	"github.com/podgauge/podgauge/test/helpers/testlog"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
)

// firstResponse sends the devices of the first response.
type firstResponse chan string

func (c firstResponse) Report(_ context.Context, _ string, r *api.NodeResponse) (time.Duration, error) {
	select {
	case c <- string(r.Devices[0].ID):
	default:
	}
	return 0, nil
}

func (c firstResponse) Forget(context.Context, string) error { return nil }

// TestTLSAndPassword checks that a node with a certificate and a password is followed, with each setting that trusts
// the certificate, also after a change of the password.
func TestTLSAndPassword(t *testing.T) {
	dir := t.TempDir()
	passwordFile, caFile := filepath.Join(dir, "password"), filepath.Join(dir, "ca.pem")
	writeFile(t, passwordFile, "old\n")
	first := make(chan struct{}, 1)
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if user, password, _ := r.BasicAuth(); user != "prometheus" || password != "new" {
			w.WriteHeader(http.StatusUnauthorized)
			select {
			case first <- struct{}{}:
			default:
			}
			return
		}
		w.Write([]byte(state("GPU-1") + "\n"))
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	}))
	defer server.Close()
	writeFile(t, caFile, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})))
	address := netip.MustParseAddrPort(server.Listener.Addr().String())
	for name, settings := range map[string]rest.TLSClientConfig{
		"authority":       {CAFile: caFile},
		"name":            {CAFile: caFile, ServerName: "example.com"}, // of httptest
		"any certificate": {Insecure: true},
	} {
		t.Run(name, func(t *testing.T) {
			client, err := nodes.NewHTTPClient(settings)
			if err != nil {
				t.Fatal(err)
			}
			defer client.CloseIdleConnections()
			writeFile(t, passwordFile, "old\n")
			responses := make(firstResponse, 1)
			var log testlog.Buffer
			n := nodes.New(nodes.Options{
				Kubernetes: fake.NewClientset(&corev1.Pod{
					ObjectMeta: metav1.ObjectMeta{Namespace: "podgauge", Name: "podgauge-1"},
					Spec:       corev1.PodSpec{NodeName: "node-a"},
					Status:     corev1.PodStatus{Phase: corev1.PodRunning, PodIP: address.Addr().String()},
				}),
				Scheme: "https", Port: int(address.Port()), HTTP: client, Username: "prometheus", PasswordFile: passwordFile,
				Reporters: []nodes.Reporter{responses}, Log: log.Logger(),
			})
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- n.Run(ctx) }()
			<-first
			writeFile(t, passwordFile, "new\n")
			if got := <-responses; got != "GPU-1" {
				t.Errorf("got device %s", got)
			}
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
	}
	if _, err := nodes.NewHTTPClient(rest.TLSClientConfig{CAFile: passwordFile}); err == nil {
		t.Error("a file without a certificate is accepted")
	}
}

func writeFile(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

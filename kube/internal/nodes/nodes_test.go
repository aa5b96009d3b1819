package nodes_test

import (
	"context"
	"encoding/pem"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/podgauge/podgauge/internal/retry"
	"github.com/podgauge/podgauge/internal/web/api"
	"github.com/podgauge/podgauge/kube/internal/nodes"
	"github.com/podgauge/podgauge/test/bubble"
	"github.com/podgauge/podgauge/test/helpers/background"
	"github.com/podgauge/podgauge/test/helpers/expect"
	"github.com/podgauge/podgauge/test/helpers/require"
	"github.com/podgauge/podgauge/test/helpers/testlog"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"
)

// TestFollow checks that Reporters get each state of each node once.
func TestFollow(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := start(t)
		a, b := f.serve("10.0.0.1"), f.serve("10.0.0.2")
		f.pod("node-a", "10.0.0.1")
		f.pod("node-b", "10.0.0.2")
		f.pod("node-c", "10.0.0.3") // nothing listens
		f.pod("node-d", "10.0.0.4", func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded })
		a.lines <- state("GPU-1")
		b.lines <- state("GPU-2")
		f.wantReports(time.Second, "node-a: GPU-1", "node-b: GPU-2")
		expect.Equal(t, a.requests[0], "/api/v1/node?watch")
		for range 3 {
			a.lines <- state("GPU-1") // with a later time
		}
		b.lines <- state("GPU-2", "GPU-3")
		f.wantReports(time.Second, "node-b: GPU-2 GPU-3")
		time.Sleep(40 * time.Second)
		f.wantCount(2, 1)
		for _, action := range f.client.Actions() { // the fake API server does not select
			if w, ok := action.(clienttesting.WatchAction); ok &&
				(w.GetNamespace() != "podgauge" || w.GetWatchRestrictions().Labels.String() != "app=podgauge") {
				t.Errorf("got watch %v", w)
			}
		}
		if n := f.log.Count("cannot follow node"); n != 1 || f.log.Count("connection refused") != 1 {
			t.Errorf("got log %s", f.log.String())
		}
	})
}

// TestHungNode checks that a node without a line for 45 s is asked anew, and delays no other node.
func TestHungNode(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := start(t)
		hung, other := f.serve("10.0.0.1"), f.serve("10.0.0.2")
		f.network.serve("10.0.0.3", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }) // never answers
		f.pod("node-a", "10.0.0.1")
		f.pod("node-b", "10.0.0.2")
		f.pod("node-c", "10.0.0.3")
		hung.lines <- state("GPU-1")
		f.wantReports(time.Second, "node-a: GPU-1")
		for range 4 {
			time.Sleep(10 * time.Second)
			other.lines <- state(time.Now().Format(time.TimeOnly))
		}
		if f.wantCount(2, 1); hung.connections() != 1 {
			t.Errorf("got %d connections", hung.connections())
		}
		time.Sleep(time.Second)
		f.take()
		time.Sleep(2 * time.Second) // 44 s after the line
		synctest.Wait()
		f.wantCount(2, 1)
		time.Sleep(2 * time.Second)
		other.lines <- state("GPU-2")
		hung.lines <- state("GPU-1")
		f.wantReports(time.Second, "node-a: GPU-1", "node-a: GPU-1", "node-b: GPU-2") // also as unreachable
		if f.wantCount(2, 1); hung.connections() != 2 {
			t.Errorf("got %d connections, want a second", hung.connections())
		}
	})
}

// TestReconnect checks that a broken stream is soon replaced, and that a node that stays away costs few attempts.
func TestReconnect(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := start(t)
		p := f.serve("10.0.0.1")
		f.pod("node-a", "10.0.0.1")
		p.lines <- state("GPU-1")
		f.wantReports(time.Second, "node-a: GPU-1")
		p.lines <- ""
		p.lines <- state("GPU-2") // on the next connection
		f.take()
		f.wantReports(2*time.Second, "node-a: GPU-2")
		if f.wantCount(1, 0); f.log.Count("cannot follow") != 0 {
			t.Errorf("got log %s", f.log.String())
		}
		before := p.connections()
		end := time.After(5 * time.Minute)
		for ended := false; !ended; {
			select {
			case p.lines <- "":
			case <-end:
				ended = true
			}
		}
		if n := p.connections() - before; n < 10 || n > 30 {
			t.Errorf("got %d connections in five minutes", n)
		}
	})
}

// TestBadResponses checks that an unusable response is a message with the cause, and no report.
func TestBadResponses(t *testing.T) {
	for name, c := range map[string]struct {
		status int
		body   string
		want   string
	}{
		"long line":       {200, `{"at":"` + strings.Repeat("x", 33<<20), "a line exceeds 4 MiB"},
		"many fields":     {200, `{"at":"","devices":[` + strings.Repeat("0,", 1<<18) + "0]}\n", "262145 fields, at most 200000"},
		"no JSON":         {200, "<html>\n", "decode response: invalid character"},
		"other JSON":      {200, "null\n", "not a response of podgauge"},
		"half a line":     {200, `{"at":"2026`, "decode response: unexpected end of JSON"},
		"empty":           {200, "", "closed the stream"},
		"too many":        {503, `{"error":"16 watches"}`, `503 Service Unavailable: {\"error\":\"16 watches\"}`},
		"wrong password":  {401, "Unauthorized\n", "401 Unauthorized: Unauthorized"},
		"redirect":        {307, "", "307 Temporary Redirect"},
		"escape sequence": {500, "\x1b[2J", "500 Internal Server Error: \uFFFD[2J"},
	} {
		bubble.Run(t, name, func(t *testing.T) {
			f := start(t)
			f.network.serve("10.0.0.1", func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(c.status)
				w.Write([]byte(c.body))
			})
			f.pod("node-a", "10.0.0.1")
			f.wantReports(10 * time.Second)
			f.wantCount(0, 1)
			if lines := f.log.Matching("cannot follow node"); len(lines) != 1 || !strings.Contains(lines[0], c.want) {
				t.Errorf("got log %q, want %s", lines, c.want)
			}
			p := f.serve("10.0.0.1")
			p.lines <- state("GPU-1")
			f.wantReports(time.Second, "node-a: GPU-1")
			if f.wantCount(1, 0); f.log.Count("node followed again") != 1 {
				t.Errorf("got log %s", f.log.String())
			}
		})
	}
}

// TestPodReplaced checks that the new pod of a node is followed, and that the node is not forgotten between.
func TestPodReplaced(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := start(t)
		old, replacement := f.serve("10.0.0.1"), f.serve("10.0.0.2")
		p := f.pod("node-a", "10.0.0.1")
		old.lines <- state("GPU-1")
		f.wantReports(time.Second, "node-a: GPU-1")
		f.deletePod(p)
		f.wantReports(20*time.Second, "node-a: GPU-1") // as unreachable
		f.wantCount(0, 0)
		f.pod("node-a", "10.0.0.2")
		replacement.lines <- state("GPU-2")
		f.wantReports(time.Second, "node-a: GPU-2")
		f.wantCount(1, 0)
	})
}

// TestSurge checks which of two pods of a node is followed.
func TestSurge(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := start(t)
		old, replacement := f.serve("10.0.0.1"), f.serve("10.0.0.2")
		first := f.pod("node-a", "10.0.0.1")
		old.lines <- state("GPU-1")
		time.Sleep(time.Minute)
		second := f.pod("node-a", "10.0.0.2", func(p *corev1.Pod) { p.Status.Conditions = nil })
		time.Sleep(time.Second)
		if replacement.connections() != 0 {
			t.Error("the pod that is not ready is followed")
		}
		second.Status.Conditions = first.Status.Conditions
		_, err := f.client.CoreV1().Pods("podgauge").UpdateStatus(t.Context(), second, metav1.UpdateOptions{})
		require.NoError(t, err)
		replacement.lines <- state("GPU-2")
		time.Sleep(time.Second)
		f.take()
		first.Status.Conditions = nil
		f.deletePod(first)
		replacement.lines <- state("GPU-3")
		f.wantReports(time.Second, "node-a: GPU-3")
		expect.Equal(t, replacement.connections(), 1, "connections")
	})
}

// TestNodeGone checks that a node is forgotten only when it is gone, also if this fails at first, and that it may return.
func TestNodeGone(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := start(t)
		p := f.serve("10.0.0.1")
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-a"}}
		_, err := f.client.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{})
		require.NoError(t, err)
		pod := f.pod("node-a", "10.0.0.1")
		p.lines <- state("GPU-1")
		time.Sleep(time.Second)
		f.deletePod(pod)
		time.Sleep(time.Second)
		f.take()
		f.wantReports(2 * time.Hour)
		require.NoError(t, f.client.CoreV1().Nodes().Delete(t.Context(), "node-a", metav1.DeleteOptions{}))
		f.set(0, errors.New("no API server"))
		time.Sleep(time.Hour)
		if got := f.take(); len(got) < 10 || got[0] != "node-a forgotten" {
			t.Errorf("got reports %q, want attempts", got)
		}
		f.set(0, nil)
		f.wantReports(time.Minute, "node-a forgotten")
		f.wantReports(time.Hour)
		f.pod("node-a", "10.0.0.1")
		p.lines <- state("GPU-2")
		f.wantReports(time.Second, "node-a: GPU-2")
	})
}

// TestFailedReport checks that a failed report is repeated, a rejected one later, and that one message stands for many.
func TestFailedReport(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := start(t)
		p := f.serve("10.0.0.1")
		f.set(0, errors.New("connection reset"))
		f.pod("node-a", "10.0.0.1")
		p.lines <- state("GPU-1")
		go func() {
			for retry.Sleep(t.Context(), 15*time.Second) == nil {
				p.lines <- state("GPU-1")
			}
		}()
		time.Sleep(50 * time.Second)
		if n := len(f.take()); n < 6 || n > 16 {
			t.Errorf("got %d attempts in 50 s", n)
		}
		f.set(0, apierrors.NewForbidden(schema.GroupResource{}, "x", nil))
		time.Sleep(30 * time.Second)
		f.take()
		time.Sleep(5 * time.Minute)
		if n := len(f.take()); n < 6 || n > 20 {
			t.Errorf("got %d attempts in 5 min after rejections", n)
		}
		f.set(0, nil)
		f.wantReports(time.Minute, "node-a: GPU-1")
		if n := f.log.Count("cannot report"); n < 2 || n > 9 {
			t.Errorf("got %d messages: %s", n, f.log.String())
		}
	})
}

// TestNext checks that a Reporter is called after the delay it asked for, but not while the node is unreachable.
func TestNext(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := start(t)
		p := f.serve("10.0.0.1")
		f.set(10*time.Second, nil)
		f.pod("node-a", "10.0.0.1")
		p.lines <- state("GPU-1")
		time.Sleep(35 * time.Second)
		if n := len(f.take()); n != 4 {
			t.Errorf("got %d reports in 35 s, want 4", n)
		}
		time.Sleep(11 * time.Second) // the node hangs
		f.take()
		f.wantReports(10 * time.Minute)
	})
}

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
			require.NoError(t, err)
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
			defer background.Run(t, n.Run)()
			<-first
			writeFile(t, passwordFile, "new\n")
			expect.Equal(t, <-responses, "GPU-1")
		})
	}
	if _, err := nodes.NewHTTPClient(rest.TLSClientConfig{CAFile: passwordFile}); err == nil {
		t.Error("a file without a certificate is accepted")
	}
}

func writeFile(t *testing.T, path, content string) {
	t.Helper()
	require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
}

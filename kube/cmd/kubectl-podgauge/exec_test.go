package main

import (
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/gorilla/websocket"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/cli-runtime/pkg/genericiooptions"
)

// TestExecInPod checks the exec protocol with a WebSocket server, and the exit statuses of podgauge doctor.
func TestExecInPod(t *testing.T) {
	for name, c := range map[string]struct {
		stdout, stderr, status string
		want                   string
		err                    string
	}{
		"success": {stdout: "{}", status: `{"status":"Success"}`, want: "{}"},
		"failed check": {
			stdout: "{}", stderr: "with the flags of the daemon", want: "{}", err: "problems found",
			status: `{"status":"Failure","reason":"NonZeroExitCode","details":{"causes":[{"reason":"ExitCode","message":"1"}]}}`,
		},
		"usage": {
			stderr: "podgauge doctor: unknown flag\n", err: "podgauge doctor: unknown flag",
			status: `{"status":"Failure","reason":"NonZeroExitCode","details":{"causes":[{"reason":"ExitCode","message":"2"}]}}`,
		},
		"endless output": {stdout: strings.Repeat("x", maxResponseBytes+1), err: "output larger than 33554432 bytes"},
		"no program":     {status: `{"status":"Failure","message":"exec: no such file"}`, err: "no such file"},
	} {
		t.Run(name, func(t *testing.T) {
			var query map[string][]string
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				query = r.URL.Query()
				upgrader := websocket.Upgrader{Subprotocols: []string{"v5.channel.k8s.io"}}
				conn, err := upgrader.Upgrade(w, r, nil)
				if err != nil {
					t.Error(err)
					return
				}
				defer conn.Close()
				for channel, text := range []string{1: c.stdout, 2: c.stderr, 3: c.status} {
					if text != "" {
						conn.WriteMessage(websocket.BinaryMessage, append([]byte{byte(channel)}, text...))
					}
				}
				conn.WriteMessage(websocket.CloseMessage, websocket.FormatCloseMessage(websocket.CloseNormalClosure, ""))
			}))
			defer server.Close()
			client := newClient(genericiooptions.NewTestIOStreamsDiscard())
			client.timeout, client.parallel = 1, 1
			*client.flags.APIServer, *client.flags.KubeConfig = server.URL, os.DevNull
			if err := client.connect(); err != nil {
				t.Fatal(err)
			}
			p := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "podgauge"}}}}
			p.Namespace, p.Name = "podgauge", "podgauge-x"
			out, err := client.runInPod(t.Context(), p, []string{"podgauge", "doctor"})
			if string(out) != c.want || (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
				t.Errorf("got %q, %v", out, err)
			}
			if !slices.Equal(query["command"], []string{"podgauge", "doctor"}) || query["container"][0] != "podgauge" {
				t.Errorf("query: got %v", query)
			}
		})
	}
}

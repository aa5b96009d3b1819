package podresources

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	api "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// kubeletProcessEnv makes the test binary serve a kubelet, so that the test process counts only the client's memory allocations.
const kubeletProcessEnv = "PODGAUGE_TEST_KUBELET"

func TestMain(m *testing.M) {
	if socket := os.Getenv(kubeletProcessEnv); socket != "" {
		if err := serveKubelet(socket, os.Args[len(os.Args)-1]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// fixedLister is a kubelet with a constant List response.
type fixedLister struct {
	api.UnimplementedPodResourcesListerServer
	response *api.ListPodResourcesResponse
}

func (f fixedLister) List(context.Context, *api.ListPodResourcesRequest) (*api.ListPodResourcesResponse, error) {
	return f.response, nil
}

// serveKubelet serves until the parent closes the standard input.
func serveKubelet(socket, pods string) error {
	n, err := strconv.Atoi(pods)
	if err != nil {
		return err
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	api.RegisterPodResourcesListerServer(server, fixedLister{response: nodeResponse(n, 8)})
	fmt.Println("serving")
	go func() {
		io.Copy(io.Discard, os.Stdin)
		server.Stop()
	}()
	if err := server.Serve(listener); !errors.Is(err, grpc.ErrServerStopped) { // the parent may end before Serve starts
		return err
	}
	return nil
}

// startKubeletProcess starts a process with a kubelet of many pods until the end of the test.
func startKubeletProcess(t testing.TB, pods int) (socket string) {
	t.Helper()
	socket = filepath.Join(shortDir(t), "kubelet.sock")
	cmd := exec.Command(os.Args[0], strconv.Itoa(pods))
	cmd.Env = append(os.Environ(), kubeletProcessEnv+"="+socket)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(in.Close(), cmd.Wait()); err != nil {
			t.Error(err)
		}
	})
	if _, err := fmt.Fscanln(out, new(string)); err != nil {
		t.Fatal(err)
	}
	return socket
}

// shortDir returns a temporary folder with a path short enough for sockets: t.TempDir contains the test's name.
func shortDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "podres")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

package cluster

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"time"
)

// apiClient is an API client of the administrator.
type apiClient struct {
	server, token string
	client        *http.Client
}

func newAPI(server string, ca []byte, token string) *apiClient {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	return &apiClient{server: server, token: token, client: &http.Client{
		Timeout:   10 * time.Second,
		Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}},
	}}
}

// Get decodes an object or list of the API server into v, unless v is nil.
func (c *Cluster) Get(ctx context.Context, path string, v any) error {
	body, err := c.Read(ctx, path)
	if err != nil || v == nil {
		return err
	}
	if err := json.Unmarshal(body, v); err != nil {
		return fmt.Errorf("decode %s: %w", path, err)
	}
	return nil
}

// Read returns a response of the API server, also as proxy of a pod: /api/v1/namespaces/<ns>/pods/<pod>:<port>/proxy/<path>.
func (c *Cluster) Read(ctx context.Context, path string) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, c.api.server+path, nil)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Authorization", "Bearer "+c.api.token)
	return doRequest(c.api.client, request)
}

// checkURL returns an error unless the URL returns status 200.
func checkURL(ctx context.Context, url string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	request.Close = true // the next cluster has the same address
	_, err = doRequest(http.DefaultClient, request)
	return err
}

func doRequest(client *http.Client, request *http.Request) ([]byte, error) {
	answer, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		return nil, err
	}
	if answer.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("GET %s: %s: %.1000s", request.URL, answer.Status, body)
	}
	return body, nil
}

// Kubectl runs kubectl as the administrator and returns the output.
func (c *Cluster) Kubectl(ctx context.Context, args ...string) (string, error) {
	binary, err := binaryPath(kubernetesProgram, "kubectl")
	if err != nil {
		return "", err
	}
	return c.command(ctx, "", binary, args...)
}

// Apply applies objects in YAML or JSON.
func (c *Cluster) Apply(ctx context.Context, objects string, args ...string) (string, error) {
	binary, err := binaryPath(kubernetesProgram, "kubectl")
	if err != nil {
		return "", err
	}
	return c.command(ctx, objects, binary, append([]string{"apply", "--filename=-"}, args...)...)
}

// Helm runs helm as the administrator and returns the output.
func (c *Cluster) Helm(ctx context.Context, args ...string) (string, error) {
	binary, err := binaryPath(helmProgram, "helm")
	if err != nil {
		return "", err
	}
	return c.command(ctx, "", binary, args...)
}

// command runs helm or kubectl with caches in the node's folder.
func (c *Cluster) command(ctx context.Context, stdin, binary string, args ...string) (string, error) {
	command := exec.CommandContext(ctx, binary, args...)
	command.Env = append(os.Environ(), "KUBECONFIG="+c.Kubeconfig, "HOME="+c.Node.Path("home"))
	command.Stdin = strings.NewReader(stdin)
	var stdout, stderr strings.Builder
	command.Stdout, command.Stderr = &stdout, &stderr
	if err := command.Run(); err != nil {
		return stdout.String(), fmt.Errorf("%s: %w\n%s%s", strings.Join(command.Args, " "), err, stdout.String(), stderr.String())
	}
	return stdout.String(), nil
}

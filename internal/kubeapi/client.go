// Package kubeapi is a small client of the Kubernetes API server: single
// requests, and lists followed by a watch.
//
// client-go would double the size of the program
// (docs/contributing/adr/0017-api-server-client.md). The client keeps a single
// object in memory, reads the service account's token before each request and
// the CA before each connection, because both rotate, and leaves backoff to the
// caller.
package kubeapi

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"
)

// serviceAccountDir has token and CA of a pod's service account.
const serviceAccountDir = "/var/run/secrets/kubernetes.io/serviceaccount"

const (
	connectTimeout = 10 * time.Second
	// responseTimeout is the maximum time to the first byte of a response.
	responseTimeout = 30 * time.Second
	// maxResponseBytes limits the response of a single request.
	maxResponseBytes = 4 << 20
	maxTokenBytes    = 64 << 10
	maxErrorBytes    = 16 << 10
	// maxMessageBytes limits the API server's message in an error.
	maxMessageBytes = 512
)

// Options locate the API server and the credentials.
type Options struct {
	Server    string // URL without a path: "https://10.96.0.1:443"
	TokenFile string
	CAFile    string
}

// InCluster returns the Options of a pod with a service account.
func InCluster(lookupEnv func(string) (string, bool)) (Options, error) {
	host, _ := lookupEnv("KUBERNETES_SERVICE_HOST")
	port, _ := lookupEnv("KUBERNETES_SERVICE_PORT")
	if host == "" || port == "" {
		return Options{}, errors.New("find API server: " +
			"KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set, as in a pod")
	}
	return Options{
		Server:    "https://" + net.JoinHostPort(host, port),
		TokenFile: filepath.Join(serviceAccountDir, "token"),
		CAFile:    filepath.Join(serviceAccountDir, "ca.crt"),
	}, nil
}

// NoResponse is the code of requests without a response.
const NoResponse = "error"

// Client sends requests to one API server. It is safe for concurrent use.
type Client struct {
	options Options
	http    *http.Client

	mu       sync.Mutex
	requests map[string]float64 // by HTTP status code or NoResponse; guarded by mu
}

// New returns a client. Nothing is connected or read yet.
func New(o Options) *Client {
	// The first success, missing permission and outage are visible to
	// increase().
	c := &Client{options: o, requests: map[string]float64{"200": 0, "403": 0, NoResponse: 0}}
	c.http = &http.Client{
		Transport: &http.Transport{
			DialTLSContext:        c.dialTLS,
			ResponseHeaderTimeout: responseTimeout,
			IdleConnTimeout:       90 * time.Second,
			MaxIdleConnsPerHost:   1,
			DisableCompression:    true, // the network to the API server is faster than gzip
		},
		CheckRedirect: func(*http.Request, []*http.Request) error {
			return errors.New("the API server sent a redirect")
		},
	}
	return c
}

// dialTLS connects with the current CA.
func (c *Client) dialTLS(ctx context.Context, network, address string) (net.Conn, error) {
	ca, err := os.ReadFile(c.options.CAFile)
	if err != nil {
		return nil, fmt.Errorf("read CA: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(ca) {
		return nil, fmt.Errorf("read CA: %s: no certificate", c.options.CAFile)
	}
	dialer := tls.Dialer{
		NetDialer: &net.Dialer{
			Timeout: connectTimeout,
			KeepAliveConfig: net.KeepAliveConfig{
				Enable:   true,
				Idle:     15 * time.Second,
				Interval: 5 * time.Second,
				Count:    3,
			},
		},
		Config: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12},
	}
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	return dialer.DialContext(ctx, network, address)
}

// StatusError is a response of the API server other than success.
type StatusError struct {
	Code    int           // HTTP status
	Reason  string        // "Forbidden", "AlreadyExists", "Expired"; may be empty
	Message string        // at most 512 bytes
	Delay   time.Duration // before the next request, if the API server asks for a delay
}

func (e *StatusError) Error() string { return fmt.Sprintf("API server: %d %s", e.Code, e.Message) }

// IsCode reports whether an error is a StatusError with an HTTP status.
func IsCode(err error, code int) bool {
	e, ok := errors.AsType[*StatusError](err)
	return ok && e.Code == code
}

// RetryAfter returns the delay that the API server asks for with an error; 0 if
// none.
func RetryAfter(err error) time.Duration {
	if e, ok := errors.AsType[*StatusError](err); ok {
		return e.Delay
	}
	return 0
}

// Do sends a request with a JSON body, or none, and returns the body of the
// response.
func (c *Client) Do(ctx context.Context, method, path, contentType string, body []byte) ([]byte, error) {
	response, err := c.send(ctx, method, path, contentType, body)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close() //nolint:errcheck // read to the end
	data, err := io.ReadAll(io.LimitReader(response.Body, maxResponseBytes+1))
	if err == nil && len(data) > maxResponseBytes {
		err = fmt.Errorf("response larger than %d bytes", maxResponseBytes)
	}
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", method, path, err)
	}
	return data, nil
}

// Requests returns the number of requests so far, by HTTP status code;
// NoResponse: by none.
func (c *Client) Requests() map[string]float64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.requests)
}

// send sends a request and returns the response of a success, with an open
// body.
func (c *Client) send(ctx context.Context, method, path, contentType string,
	body []byte,
) (response *http.Response, err error) {
	defer func() { c.count(response, err) }()
	request, err := http.NewRequestWithContext(ctx, method, c.options.Server+path, bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", method, path, err)
	}
	token, err := readToken(c.options.TokenFile)
	if err != nil {
		return nil, fmt.Errorf("read token: %w", err)
	}
	request.Header.Set("Authorization", "Bearer "+token)
	request.Header.Set("Accept", "application/json")
	request.Header.Set("User-Agent", "podgauge")
	if contentType != "" {
		request.Header.Set("Content-Type", contentType)
	}
	if response, err = c.http.Do(request); err != nil {
		return nil, err // has method and URL
	}
	if response.StatusCode/100 != 2 {
		defer response.Body.Close() //nolint:errcheck // of an error
		return nil, fmt.Errorf("%s %s: %w", method, path, readError(response))
	}
	return response, nil
}

// count counts a request by its result.
func (c *Client) count(response *http.Response, err error) {
	code := NoResponse
	if status, ok := errors.AsType[*StatusError](err); ok {
		code = strconv.Itoa(status.Code)
	} else if err == nil {
		code = strconv.Itoa(response.StatusCode)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.requests[code]++
}

func readToken(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close() //nolint:errcheck // opened for reading
	data, err := io.ReadAll(io.LimitReader(f, maxTokenBytes))
	token := strings.TrimSpace(string(data))
	if err == nil && (token == "" || strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' })) {
		err = fmt.Errorf("%s: no token", path)
	}
	return token, err
}

// readError decodes the body of an error: a Status, or text of a proxy.
func readError(response *http.Response) *StatusError {
	e := &StatusError{Code: response.StatusCode, Message: http.StatusText(response.StatusCode)}
	if seconds, err := strconv.Atoi(response.Header.Get("Retry-After")); err == nil && seconds > 0 {
		e.Delay = time.Duration(min(seconds, 600)) * time.Second
	}
	body, _ := io.ReadAll(io.LimitReader(response.Body, maxErrorBytes)) // the status code is enough
	e.decode(body)
	return e
}

// decode sets what a Status has, in printable text.
func (e *StatusError) decode(body []byte) {
	var status struct {
		Code            int
		Reason, Message string
	}
	if err := json.Unmarshal(body, &status); err != nil || status.Message == "" {
		return
	}
	if status.Code > 0 && status.Code < 1000 {
		e.Code = status.Code
	}
	clean := func(s string) string {
		s = strings.Map(func(r rune) rune {
			if r < ' ' || r == 0x7f {
				return ' '
			}
			return r
		}, s[:min(len(s), maxMessageBytes)])
		return strings.ToValidUTF8(s, "")
	}
	e.Reason, e.Message = clean(status.Reason), clean(status.Message)
}

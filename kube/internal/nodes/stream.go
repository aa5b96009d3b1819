package nodes

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/podgauge/podgauge/internal/retry"
	"github.com/podgauge/podgauge/internal/text"
	"github.com/podgauge/podgauge/internal/web/api"
	"k8s.io/client-go/rest"
)

const (
	// silence is the time without a line after which a stream hangs. podgauge
	// sends a line at least every 15 s.
	silence = 45 * time.Second
	// maxLine and maxFields limit a response in memory: decoded, a field takes
	// up to half a kilobyte. 64 GPUs with 7 MIG devices each and 1,000 incidents
	// have half of it.
	maxLine, maxFields = 4 << 20, 200_000
	// maxErrorBytes limits podgauge's message in an error.
	maxErrorBytes              = 200
	minReconnect, maxReconnect = 500 * time.Millisecond, 30 * time.Second
	// quietFailures is the number of failures without a message: a pod that
	// starts does not listen yet.
	quietFailures = 3
)

// NewHTTPClient returns a client for Options.
func NewHTTPClient(t rest.TLSClientConfig) (*http.Client, error) {
	transport, err := rest.TransportFor(&rest.Config{
		TLSClientConfig:    t,
		Proxy:              func(*http.Request) (*url.URL, error) { return nil, nil }, // pods are near
		DisableCompression: true,                                                      // a line must not wait
	})
	// A redirect would carry the password to an address that a pod chooses.
	reject := func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &http.Client{Transport: transport, CheckRedirect: reject}, err
}

// follow publishes the responses of a pod until ctx is done.
func (o *Options) follow(ctx context.Context, e *entry, t target) {
	log := o.Log.With("node", e.name, "url", t.url)
	defer e.setReachable(false)
	backoff := retry.Backoff{Min: minReconnect, Max: maxReconnect}
	failures := 0
	for ctx.Err() == nil {
		lines, err := o.stream(ctx, t, func(r *api.NodeResponse) {
			if failures >= quietFailures {
				log.Info("node followed again")
			}
			failures = 0
			e.state.Set(state{response: r, reachable: true})
		})
		if ctx.Err() != nil {
			return
		}
		e.setReachable(false)
		if lines > 0 {
			backoff.Reset()
		}
		if failures++; failures == quietFailures {
			log.Warn("cannot follow node", "err", err)
		}
		_ = retry.Sleep(ctx, retry.Spread(backoff.Next()))
	}
}

func (e *entry) setReachable(reachable bool) {
	s, _ := e.state.Get()
	if s.reachable != reachable {
		s.reachable = reachable
		e.state.Set(s)
	}
}

// stream calls publish with each response that differs from the one before, and
// returns the number of lines when the stream ends.
func (o *Options) stream(ctx context.Context, t target, publish func(*api.NodeResponse)) (lines int, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	hung := time.AfterFunc(silence, func() { cancel(fmt.Errorf("no line within %s", silence)) })
	defer hung.Stop()
	response, err := o.get(ctx, t)
	if err != nil {
		return 0, withCause(ctx, err)
	}
	defer response.Body.Close() //nolint:errcheck // opened for reading
	if response.StatusCode != http.StatusOK {
		body, _ := io.ReadAll(io.LimitReader(response.Body, maxErrorBytes))
		return 0, fmt.Errorf("%s: %s", response.Status, text.Printable(strings.TrimSpace(string(body))))
	}
	seed, last := maphash.MakeSeed(), uint64(0)
	scanner := bufio.NewScanner(response.Body)
	scanner.Buffer(nil, maxLine)
	for ; scanner.Scan(); lines++ {
		hung.Reset(silence)
		sum := maphash.Bytes(seed, withoutTime(scanner.Bytes()))
		if lines > 0 && sum == last {
			continue
		}
		if n := bytes.Count(scanner.Bytes(), []byte(",")); n > maxFields {
			return lines, fmt.Errorf("decode response: %d fields, at most %d", n, maxFields)
		}
		r := new(api.NodeResponse)
		if err := json.Unmarshal(scanner.Bytes(), r); err != nil {
			return lines, fmt.Errorf("decode response: %w", err)
		}
		if r.At.IsZero() {
			return lines, errors.New("decode response: not a response of podgauge")
		}
		last = sum
		publish(r)
		_ = retry.Sleep(ctx, changeInterval) // a node that sends line after line must not take a processor
	}
	switch err := scanner.Err(); {
	case errors.Is(err, bufio.ErrTooLong):
		return lines, fmt.Errorf("read response: a line exceeds %d MiB", maxLine>>20)
	case err != nil:
		return lines, withCause(ctx, fmt.Errorf("read response: %w", err))
	}
	return lines, errors.New("podgauge closed the stream")
}

// get starts a stream. The password is read anew, because it may have changed.
func (o *Options) get(ctx context.Context, t target) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, t.url, http.NoBody)
	if err != nil {
		return nil, err
	}
	if o.PasswordFile != "" {
		password, err := os.ReadFile(o.PasswordFile)
		if err != nil {
			return nil, fmt.Errorf("read password: %w", err)
		}
		request.SetBasicAuth(o.Username, strings.TrimRight(string(password), "\r\n"))
	}
	return o.HTTP.Do(request)
}

// withCause returns why ctx was canceled, or the error.
func withCause(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

// withoutTime returns a line without the time at its start, so that lines
// differ only if the state does.
func withoutTime(line []byte) []byte {
	rest, ok := bytes.CutPrefix(line, []byte(`{"at":"`))
	if !ok {
		return line
	}
	_, rest, _ = bytes.Cut(rest, []byte(`"`))
	return rest
}

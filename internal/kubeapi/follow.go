package kubeapi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

const (
	listTimeout = 60 * time.Second
	// minWatch is the minimum lifetime of a watch, as requested from the API
	// server. The maximum is twice as long, as in client-go.
	minWatch = 5 * time.Minute
	// silenceTimeout ends a watch without any message: the API server sends a
	// bookmark each minute.
	silenceTimeout = 150 * time.Second
)

var errSilence = fmt.Errorf("watch: no message within %s", silenceTimeout)

// Follower follows the objects of one resource that match a field selector.
type Follower struct {
	Client        *Client
	Path          string // "/api/v1/pods"
	FieldSelector string // "spec.nodeName=node-a"

	resourceVersion string // newest known; empty: list first
}

// Follow lists the objects, and passes changes to the handler until the watch
// ends. A nil error means that the API server ended the watch as usual: the
// next Follow continues without a list and without a gap. It also continues
// after an error, if the API server still has the events. An error of the
// handler ends Follow, is returned, and makes the next Follow begin with a
// list.
func (f *Follower) Follow(ctx context.Context, handle func(WatchEvent) error) error {
	report := func(e WatchEvent) error {
		err := handle(e)
		if err != nil {
			f.resourceVersion = ""
		}
		return err
	}
	resumes := f.resourceVersion != ""
	if resumes {
		err := f.watch(ctx, true, report)
		if !IsCode(err, http.StatusGone) {
			return err
		}
		f.resourceVersion = "" // the events between are lost
	}
	if err := f.list(ctx, report); err != nil {
		f.resourceVersion = ""
		return err
	}
	err := f.watch(ctx, false, report)
	if IsCode(err, http.StatusGone) {
		f.resourceVersion = ""
	}
	return err
}

func (f *Follower) path(query url.Values) string {
	query.Set("fieldSelector", f.FieldSelector)
	return f.Path + "?" + query.Encode()
}

// list lists the objects of the API server's cache: a list of all nodes at once
// must not reach etcd.
func (f *Follower) list(ctx context.Context, handle func(WatchEvent) error) error {
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	response, err := f.Client.send(ctx, http.MethodGet, f.path(url.Values{"resourceVersion": {"0"}}), "", nil)
	if err != nil {
		return err
	}
	defer response.Body.Close() //nolint:errcheck // read to the end
	if err := handle(WatchEvent{Type: ListStarted}); err != nil {
		return err
	}
	f.resourceVersion, err = newDecoder(response.Body).readList(handle)
	if err != nil {
		return fmt.Errorf("list %s: %w", f.Path, err)
	}
	return handle(WatchEvent{Type: ListEnded})
}

// watch passes changes to the handler.
func (f *Follower) watch(ctx context.Context, resumes bool, handle func(WatchEvent) error) error {
	lifetime := minWatch + rand.N(minWatch) //nolint:gosec // spreads the load
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silence := time.AfterFunc(silenceTimeout, func() { cancel(errSilence) })
	defer silence.Stop()
	response, err := f.Client.send(ctx, http.MethodGet, f.path(url.Values{
		"watch": {"true"}, "allowWatchBookmarks": {"true"}, "resourceVersion": {f.resourceVersion},
		"timeoutSeconds": {strconv.Itoa(int(lifetime.Seconds()))},
	}), "", nil)
	if err != nil {
		return err
	}
	defer response.Body.Close() //nolint:errcheck // ended by ctx
	if resumes {
		if err := handle(WatchEvent{Type: Resumed}); err != nil {
			return err
		}
	}
	d := newDecoder(response.Body)
	for {
		event, version, err := d.readWatchEvent()
		silence.Reset(silenceTimeout)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("watch %s: %w", f.Path, err)
		}
		f.resourceVersion = version
		if event.Type != bookmark {
			if err := handle(event); err != nil {
				return err
			}
		}
	}
}

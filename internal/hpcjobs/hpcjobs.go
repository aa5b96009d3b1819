// Package hpcjobs reads which jobs of an HPC scheduler, such as Slurm, have
// which GPUs.
//
// The scheduler's prolog writes a file for each GPU, with the ids of its jobs,
// one per line, and the epilog removes the ids. Folder and files are those of
// dcgm-exporter's --hpc-job-mapping-dir: a file has the name of a GPU's index,
// or of a GPU's index and a GPU instance's id, as in 2.7
// (internal/pkg/transformation/hpc.go in NVIDIA/dcgm-exporter). A UUID as name
// is accepted as well.
package hpcjobs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/pubsub"
	"github.com/podgauge/podgauge/internal/retry"
)

const (
	// readInterval is the interval of reads: a job that ends within it may be
	// missed. fsnotify sees no changes of network file systems.
	readInterval = 2 * time.Second
	// readTimeout is the age of a read at which the jobs are unknown: a network
	// file system may hang.
	readTimeout = 10 * time.Second

	maxFiles      = 1024 // in the folder; further files are ignored
	maxFileBytes  = 4096
	maxJobs       = 32 // of a file
	maxJobIDBytes = 128
)

// fileName matches an index, an index and the id of a GPU instance, or a UUID.
var fileName = regexp.MustCompile(`^([0-9]{1,4}(\.[0-9]{1,4})?|(GPU|MIG)-[0-9A-Za-z-]{1,64})$`)

// Mapping has the ids of jobs by the name of their file. A published Mapping
// never changes.
type Mapping map[string][]string

// Of returns the jobs of a device, sorted. The jobs of a GPU are not those of its
// MIG devices.
func (m Mapping) Of(d device.Device) []string {
	name := strconv.Itoa(d.Index)
	if !d.WholeGPU() {
		name += "." + strconv.Itoa(d.GI)
	}
	// Each job has a series.
	return slices.Compact(slices.Sorted(slices.Values(slices.Concat(m[string(d.ID)], m[name]))))
}

// Follow publishes the mapping that read returns until ctx is done. A change of
// the files that cannot be read is one line in the log. A read that hangs delays
// nothing, and there is no second one beside it.
func Follow(ctx context.Context, read func() (Mapping, error), mapping *pubsub.Value[Mapping], log *slog.Logger) {
	type result struct {
		mapping Mapping
		err     error
	}
	results := make(chan result, 1)
	for logged := ""; ctx.Err() == nil; {
		go func() {
			m, err := read()
			results <- result{m, err}
		}()
		timeout := time.After(readTimeout)
		for ended := false; !ended; {
			r := result{err: fmt.Errorf("read does not end within %s", readTimeout)}
			select {
			case r = <-results:
				ended = true
			case <-timeout:
			case <-ctx.Done():
				return
			}
			text := strings.ReplaceAll(fmt.Sprint(r.err), "\n", "; ")
			if r.err != nil && text != logged {
				log.Warn("cannot read HPC job mapping", "err", text)
			}
			logged = text
			mapping.Set(r.mapping)
		}
		_ = retry.Sleep(ctx, retry.Aligned(readInterval)) // an error ends the loop
	}
}

// Read returns the mapping of a folder. Files with other names are ignored.
// Invalid files are left out, and are in the error.
func Read(folder string) (Mapping, error) {
	f, err := os.Open(folder)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // opened for reading
	entries, err := f.ReadDir(maxFiles)
	if errors.Is(err, io.EOF) { // empty
		return nil, nil
	}
	m := Mapping{}
	for _, entry := range entries {
		if !fileName.MatchString(entry.Name()) || entry.IsDir() {
			continue
		}
		jobs, readErr := readFile(filepath.Join(folder, entry.Name()))
		if errors.Is(readErr, os.ErrNotExist) { // removed since
			continue
		}
		if readErr != nil {
			err = errors.Join(err, readErr)
		} else if len(jobs) > 0 {
			m[entry.Name()] = jobs
		}
	}
	return m, err
}

// readFile returns the jobs of a regular file. A link could name any file of
// the node, and a FIFO would block.
func readFile(path string) ([]string, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // opened for reading
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, errors.Join(fmt.Errorf("read %s: not a regular file", path), err)
	}
	content, err := io.ReadAll(io.LimitReader(f, maxFileBytes+1))
	if err != nil {
		return nil, err
	}
	jobs, err := parse(content)
	if err != nil {
		err = fmt.Errorf("read %s: %w", path, err)
	}
	return jobs, err
}

// parse returns the ids in a file. A 0 is no id: some prologs write it for a
// GPU without a job.
func parse(content []byte) (jobs []string, err error) {
	if len(content) > maxFileBytes {
		return nil, fmt.Errorf("more than %d bytes", maxFileBytes)
	}
	for line := range strings.Lines(string(content)) {
		id := strings.TrimSpace(line)
		isInvalid := func(c rune) bool { return !unicode.IsPrint(c) || c == utf8.RuneError }
		switch {
		case id == "" || id == "0":
		case len(id) > maxJobIDBytes || strings.ContainsFunc(id, isInvalid):
			return nil, fmt.Errorf("expected ids of printable characters and at most %d bytes", maxJobIDBytes)
		case len(jobs) == maxJobs:
			return nil, fmt.Errorf("more than %d jobs", maxJobs)
		default:
			jobs = append(jobs, id)
		}
	}
	return jobs, nil
}

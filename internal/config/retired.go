package config

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/pubsub"
	"github.com/podgauge/podgauge/internal/retry"
	"github.com/podgauge/podgauge/internal/text"
	"go.yaml.in/yaml/v3"
)

// RetiredFile is the name of the file of retirements in its ConfigMap.
const RetiredFile = "retired.yaml"

// maxRetiredText bounds the texts of a Retirement, in bytes.
const maxRetiredText = 256

// missingPeriod is the time after which a missing file is an empty list: a
// ConfigMap that is deleted and created again, or has a new name, must not
// return faulty devices to service.
const missingPeriod = 10 * time.Minute

// Retirement is a device that is out of service, on the node that has it.
type Retirement struct {
	Device string `yaml:"device"` // UUID of a GPU or MIG device, or serial number of a GPU
	Reason string `yaml:"reason"`
	By     string `yaml:"by,omitempty"`
	Date   string `yaml:"date,omitempty"` // RFC 3339, or YYYY-MM-DD in UTC
}

// Retired is the content of a file of retirements.
type Retired struct {
	Retired []Retirement `yaml:"retired"`
}

// serialNumber excludes an index of a GPU, which names a GPU on one node only.
var serialNumber = regexp.MustCompile(`^[0-9A-Za-z]{8,32}$`)

// ParseRetired parses a file of retirements. An empty file has none. With an
// error, the result has the valid entries.
func ParseRetired(data string) (r Retired, err error) {
	switch _, err := parseYAML([]byte(data)); {
	case errors.Is(err, errEmpty):
		return r, nil
	case err != nil:
		return r, errors.New(oneLine(err))
	}
	decoder := yaml.NewDecoder(bytes.NewReader([]byte(data)))
	decoder.KnownFields(true)
	var all Retired
	if decodeErr := decoder.Decode(&all); decodeErr != nil {
		err = errors.New(oneLine(decodeErr))
	}
	for i, entry := range all.Retired {
		if _, invalid := entry.parse(); invalid != nil {
			err = cmp.Or(err, fmt.Errorf("retired, entry %d: %w", i+1, invalid))
			continue
		}
		r.Retired = append(r.Retired, entry)
	}
	return r, err
}

// oneLine returns the message of a YAML error as one line.
func oneLine(err error) string { return strings.Join(strings.Fields(text.YAMLError(err)), " ") }

// Check returns why the retirement is invalid.
func (r Retirement) Check() error {
	_, err := r.parse()
	return err
}

// Since returns the date of a valid retirement; zero: none.
func (r Retirement) Since() time.Time {
	parsed, _ := r.parse()
	return parsed.At
}

// parse checks the retirement, and returns the device package's form.
func (r Retirement) parse() (parsed device.Retirement, err error) {
	isText := func(s string) bool {
		return len(s) <= maxRetiredText && !strings.ContainsFunc(s, func(c rune) bool { return !unicode.IsPrint(c) })
	}
	switch {
	case !deviceUUID.MatchString(r.Device) && !serialNumber.MatchString(r.Device):
		return parsed, fmt.Errorf("device %.80q: expected a UUID (GPU-…, MIG-…) or the serial number of a GPU",
			r.Device)
	case strings.TrimSpace(r.Reason) == "" || !isText(r.Reason):
		return parsed, fmt.Errorf("reason: expected one line of printable text, at most %d bytes", maxRetiredText)
	case !isText(r.By):
		return parsed, fmt.Errorf("by: expected one line of printable text, at most %d bytes", maxRetiredText)
	}
	parsed = device.Retirement{Note: r.Reason, ListedAs: strings.ToLower(r.Device)}
	if r.Date != "" {
		if parsed.At, err = time.Parse(time.RFC3339, r.Date); err != nil {
			parsed.At, err = time.Parse(time.DateOnly, r.Date)
		}
		if err != nil {
			return parsed, fmt.Errorf("date %.80q: expected YYYY-MM-DD or RFC 3339", r.Date)
		}
	}
	more := slices.DeleteFunc([]string{r.By, strings.SplitN(r.Date, "T", 2)[0]}, func(s string) bool { return s == "" })
	if len(more) > 0 {
		parsed.Note += " (" + strings.Join(more, ", ") + ")"
	}
	return parsed, nil
}

// CheckRetired returns why podgauge rejects a file of retirements, which may be
// missing.
func CheckRetired(path string) error {
	data, err := ReadFile(path)
	if err == nil {
		_, err = ParseRetired(data)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// String returns the file.
func (r Retired) String() string {
	data, _ := yaml.Marshal(r) // texts can be encoded
	return string(data)
}

// devices returns the retirements by device. The first entry of a device counts.
func (r Retired) devices() device.Retirements {
	devices := device.Retirements{}
	for _, entry := range slices.Backward(r.Retired) {
		parsed, _ := entry.parse() // ParseRetired has checked the entry
		devices[parsed.ListedAs] = parsed
	}
	return devices
}

// RetiredWatcher publishes the retirements of a file, and follows its changes.
// While the file is invalid, the previous retirements stay; without any, the
// valid entries are in effect. A file that is missing for missingPeriod has no
// retirements.
type RetiredWatcher struct {
	path      string
	retired   *pubsub.Value[device.Retirements]
	log       *slog.Logger
	file      followedContent[retiredContent]
	existedAt time.Time // when a read last found the file, or the start
}

// retiredContent is the content of a file; err is "<nil>" without an error.
type retiredContent struct{ data, err string }

// NewRetiredWatcher returns a watcher that has read the file. A missing file
// publishes nothing.
func NewRetiredWatcher(path string, retired *pubsub.Value[device.Retirements], log *slog.Logger) *RetiredWatcher {
	w := &RetiredWatcher{path: path, retired: retired, log: log, existedAt: time.Now()}
	w.poll(true)
	return w
}

// Run watches until ctx is done.
func (w *RetiredWatcher) Run(ctx context.Context) error {
	for retry.Sleep(ctx, retry.Aligned(time.Second)) == nil {
		w.poll(false)
	}
	return nil
}

func (w *RetiredWatcher) poll(force bool) {
	data, err := ReadFile(w.path)
	if !errors.Is(err, fs.ErrNotExist) {
		w.existedAt = time.Now()
	} else if err = nil; time.Since(w.existedAt) < missingPeriod {
		return
	}
	current := retiredContent{data, fmt.Sprint(err)}
	if !w.file.changed(current, force) {
		return
	}
	var r Retired
	if err == nil {
		r, err = ParseRetired(data)
	}
	devices := r.devices()
	before := w.retired.Newest()
	if err != nil {
		w.log.Error("file of retired devices rejected, keeping the previous list", "file", w.path, "err", err)
		if before == nil && len(devices) > 0 {
			devices[device.IncompleteList] = device.Retirement{}
			w.retired.Set(devices)
		}
		return
	}
	if before == nil || !maps.EqualFunc(before, devices, device.Retirement.Equal) {
		w.retired.Set(devices)
		w.log.Info("list of retired devices read", "file", w.path, "devices", len(devices))
	}
}

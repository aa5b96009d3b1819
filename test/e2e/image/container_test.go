package image

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/podgauge/podgauge/test/helpers/program"
)

// waitTimeout limits short operations on a busy or emulated machine.
const waitTimeout = time.Minute

// runcBundle is a runc bundle: an image's file system on disk, mounts and devices.
type runcBundle struct {
	dir string
	// emulator is the path of the emulator for the image's architecture; empty on the same architecture.
	emulator string
	mounts   []bindMount
	env      []string
	devices  []cgroupDevice
}

// cgroupDevice is a device rule of the cgroup. All devices without a rule are denied, except the default devices.
type cgroupDevice struct {
	Allow  bool   `json:"allow"`
	Type   string `json:"type,omitempty"`
	Major  int64  `json:"major,omitempty"`
	Access string `json:"access"`
}

type bindMount struct {
	Destination string   `json:"destination"`
	Type        string   `json:"type"`
	Source      string   `json:"source"`
	Options     []string `json:"options,omitempty"`
}

// unpack writes the image's file system into a folder.
func (i *ociImage) unpack(dir string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	for _, name := range slices.Sorted(maps.Keys(i.files)) { // folders before their files
		f, at := i.files[name], strings.TrimPrefix(name, "/")
		switch {
		case at == "":
			continue
		case f.mode.IsDir():
			err = root.MkdirAll(at, 0o755)
		case f.mode&fs.ModeSymlink != 0:
			err = root.Symlink(f.link, at)
		case f.mode.IsRegular():
			err = root.WriteFile(at, f.content, 0o644)
		default:
			err = fmt.Errorf("%s is %v", name, f.mode)
		}
		if err == nil && f.mode&fs.ModeSymlink == 0 {
			err = errors.Join(root.Chown(at, f.uid, f.gid), root.Chmod(at, f.mode))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// addFile copies a file of this machine into the bundle's root.
func (b *runcBundle) addFile(source, name string) error {
	content, err := os.ReadFile(source)
	if err != nil {
		return err
	}
	at := filepath.Join(b.dir, "rootfs", name)
	// With a rename, readers see the whole file or no file.
	if err := os.WriteFile(at+".new", content, 0o755); err != nil {
		return err
	}
	return os.Rename(at+".new", at)
}

// spec returns a configuration as for a pod that drops all capabilities, without privilege escalation, on a read-only root.
// The container uses the host network, for requests of the checks.
// https://github.com/opencontainers/runtime-spec/blob/main/config.md
func (b *runcBundle) spec(args []string) map[string]any {
	mounts := append([]bindMount{
		{"/proc", "proc", "proc", nil},
		{"/dev", "tmpfs", "tmpfs", []string{"nosuid", "strictatime", "mode=755"}},
		{"/sys", "none", "/sys", []string{"rbind", "ro"}},
		{"/tmp", "tmpfs", "tmpfs", []string{"nosuid", "nodev", "noexec", "mode=1777"}},
	}, b.mounts...)
	if b.emulator != "" {
		mounts = append(mounts, bindMount{"/emulator", "none", b.emulator, []string{"bind", "ro"}})
		args = append([]string{"/emulator"}, args...)
	}
	none := []string{}
	return map[string]any{
		"ociVersion": "1.0.2",
		"process": map[string]any{
			"user": map[string]any{"uid": 0, "gid": 0}, "args": args, "env": b.env, "cwd": "/", "noNewPrivileges": true,
			"capabilities": map[string]any{"bounding": none, "effective": none, "permitted": none},
		},
		"root":   map[string]any{"path": "rootfs", "readonly": true},
		"mounts": mounts,
		"linux": map[string]any{
			"namespaces": []map[string]any{{"type": "pid"}, {"type": "mount"}, {"type": "ipc"}, {"type": "uts"}},
			"resources":  map[string]any{"devices": append([]cgroupDevice{{Access: "rwm"}}, b.devices...)},
		},
	}
}

// runningContainer is a container that runs podgauge.
type runningContainer struct {
	id      string
	address string // listen address
	process *exec.Cmd
	log     *bytes.Buffer // complete after exited is closed
	exited  chan struct{}
	err     error // of the process; written before exited is closed
}

// command returns the runc command that starts the image's program.
func (b *runcBundle) command(ctx context.Context, id string, args ...string) (*exec.Cmd, error) {
	spec, err := json.Marshal(b.spec(append([]string{programPath}, args...)))
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(b.dir, "config.json"), spec, 0o644); err != nil {
		return nil, err
	}
	return exec.CommandContext(ctx, "runc", "run", "--bundle", b.dir, id), nil
}

// output runs podgauge until exit and returns the output.
func (b *runcBundle) output(ctx context.Context, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, waitTimeout)
	defer cancel()
	cmd, err := b.command(ctx, b.id(), args...)
	if err != nil {
		return "", err
	}
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("podgauge %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out)), err
}

func (b *runcBundle) id() string { return fmt.Sprintf("podgauge-image-%d", os.Getpid()) }

// launch starts podgauge and returns when podgauge logs the listen address.
func (b *runcBundle) launch(ctx context.Context, args ...string) (*runningContainer, error) {
	cmd, err := b.command(ctx, b.id(), append(args, "--web.listen-address=127.0.0.1:0", "--log.format=json")...)
	if err != nil {
		return nil, err
	}
	lines, err := cmd.StderrPipe()
	if err != nil {
		return nil, err
	}
	c := &runningContainer{id: b.id(), process: cmd, log: &bytes.Buffer{}, exited: make(chan struct{})}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	addresses := make(chan string, 1)
	go func() { // ends with the process; stop waits for it
		c.readLog(lines, addresses)
		c.err = cmd.Wait()
		close(c.exited)
	}()
	select {
	case c.address = <-addresses:
		return c, nil
	case <-c.exited:
		return nil, fmt.Errorf("podgauge exited: %w: %s", c.err, c.log)
	case <-time.After(waitTimeout):
		return nil, errors.Join(errors.New("podgauge logs no listen address"), c.stop())
	}
}

// readLog stores the log and sends the listen address.
func (c *runningContainer) readLog(r io.Reader, addresses chan<- string) {
	for lines := bufio.NewScanner(r); lines.Scan(); {
		fmt.Fprintln(c.log, lines.Text())
		var line struct{ Listen string }
		if json.Unmarshal(lines.Bytes(), &line) == nil && line.Listen != "" {
			addresses <- line.Listen
		}
	}
}

// exec runs a podgauge command in the container, as `kubectl exec` does.
func (c *runningContainer) exec(ctx context.Context, b *runcBundle, args ...string) (string, error) {
	command := append([]string{"exec", c.id}, b.emulatorArgs()...)
	out, err := exec.CommandContext(ctx, "runc", append(append(command, programPath), args...)...).CombinedOutput()
	if err != nil {
		err = fmt.Errorf("exec podgauge %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return string(out), err
}

func (b *runcBundle) emulatorArgs() []string {
	if b.emulator == "" {
		return nil
	}
	return []string{"/emulator"}
}

// stop sends SIGTERM and returns the error of the process. After waitTimeout it kills the container.
func (c *runningContainer) stop() error {
	err := exec.Command("runc", "kill", c.id, "TERM").Run()
	select {
	case <-c.exited:
		return c.err
	case <-time.After(waitTimeout):
		err = errors.Join(err, fmt.Errorf("%s ignores SIGTERM", c.id), exec.Command("runc", "delete", "--force", c.id).Run())
		_ = c.process.Process.Signal(syscall.SIGKILL)
		<-c.exited
		return err
	}
}

// fetch returns a page of podgauge.
func (c *runningContainer) fetch(ctx context.Context, page string) (string, error) {
	return program.Fetch(ctx, http.DefaultClient, "http://"+c.address+page)
}

// waitForLines scrapes /metrics until the page has a line with each prefix.
func (c *runningContainer) waitForLines(ctx context.Context, want ...string) error {
	ctx, cancel := context.WithTimeout(ctx, waitTimeout)
	defer cancel()
	for {
		page, err := c.fetch(ctx, "/metrics")
		missing := slices.DeleteFunc(slices.Clone(want), func(line string) bool { return strings.Contains("\n"+page, "\n"+line) })
		if err == nil && len(missing) == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("/metrics lacks %q: %w", missing, errors.Join(err, ctx.Err()))
		case <-c.exited:
			return fmt.Errorf("podgauge exited: %w: %s", c.err, c.log)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

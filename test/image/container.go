package main

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
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// waitTimeout is how long something that takes no time may take on a machine that is busy, or emulated.
const waitTimeout = time.Minute

// runcBundle is an image's file system on disk and what is mounted into it, from which runc makes containers.
type runcBundle struct {
	dir string
	// emulator is the program on this machine that runs those of the image; empty: the kernel does.
	emulator string
	mounts   []bindMount
	env      []string
	devices  []cgroupDevice
}

// cgroupDevice is one that the cgroup says something of. All others are refused but those that every container has.
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
	for _, name := range slices.Sorted(maps.Keys(i.files)) { // folders before what is in them
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

// addFile puts a file of this machine into the bundle's root.
func (b *runcBundle) addFile(source, name string) error {
	content, err := os.ReadFile(source)
	if err != nil {
		return err
	}
	at := filepath.Join(b.dir, "rootfs", name)
	// One rename: a process that is looking for it finds all of it or nothing.
	if err := os.WriteFile(at+".new", content, 0o755); err != nil {
		return err
	}
	return os.Rename(at+".new", at)
}

// spec is what Kubernetes asks for by drop ALL, no privilege escalation and a read-only root. The network is this
// machine's, so that the container can be reached.
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

// runningContainer is a running one.
type runningContainer struct {
	id      string
	address string // that podgauge listens on
	process *exec.Cmd
	log     *bytes.Buffer // complete when ended is closed
	exited  chan struct{}
	err     error // of the process; written before ended is closed
}

// command is runc, asked to start the image's program with these arguments.
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

// output runs podgauge to its end.
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

func (b *runcBundle) id() string { return "podgauge-image-" + path.Base(b.dir) }

// launch runs podgauge until stop, and returns when it listens.
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
	listens := make(chan string, 1)
	go func() { // ends with the process; stop waits for it
		c.readLog(lines, listens)
		c.err = cmd.Wait()
		close(c.exited)
	}()
	select {
	case c.address = <-listens:
		return c, nil
	case <-c.exited:
		return nil, fmt.Errorf("podgauge ended: %w: %s", c.err, c.log)
	case <-time.After(waitTimeout):
		return nil, errors.Join(errors.New("podgauge does not say where it listens"), c.stop())
	}
}

// readLog keeps what podgauge logs, and says where it listens.
func (c *runningContainer) readLog(r io.Reader, listens chan<- string) {
	for lines := bufio.NewScanner(r); lines.Scan(); {
		fmt.Fprintln(c.log, lines.Text())
		var line struct{ Listen string }
		if json.Unmarshal(lines.Bytes(), &line) == nil && line.Listen != "" {
			listens <- line.Listen
		}
	}
}

// exec runs podgauge once more in the container, as `kubectl exec` does.
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

// stop asks podgauge to end, which is no error. It is killed when it does not.
func (c *runningContainer) stop() error {
	err := exec.Command("runc", "kill", c.id, "TERM").Run()
	select {
	case <-c.exited:
		return c.err
	case <-time.After(waitTimeout):
		err = errors.Join(err, fmt.Errorf("%s does not end when asked to", c.id), exec.Command("runc", "delete", "--force", c.id).Run())
		_ = c.process.Process.Signal(syscall.SIGKILL)
		<-c.exited
		return err
	}
}

// fetch asks podgauge for a page.
func (c *runningContainer) fetch(ctx context.Context, page string) (string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+c.address+page, nil)
	if err != nil {
		return "", err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %s", page, response.Status, body)
	}
	return string(body), err
}

// waitForLines asks for /metrics until it has all of these beginnings of lines.
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
			return fmt.Errorf("/metrics has no %q: %w", missing, errors.Join(err, ctx.Err()))
		case <-c.exited:
			return fmt.Errorf("podgauge ended: %w: %s", c.err, c.log)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

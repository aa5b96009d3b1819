// Package program runs a test binary as the program under test.
package program

import (
	"bufio"
	"bytes"
	"cmp"
	"io"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"syscall"
	"testing"
	"time"
)

// Env is the variable that turns a test binary into the program.
const Env = "PODGAUGE_TEST_PROGRAM"

// binaryEnv is the variable with the path of a built program, which Start runs
// in place of the test binary.
const binaryEnv = "PODGAUGE_BINARY"

const (
	waitTimeout  = time.Minute
	pollInterval = 20 * time.Millisecond
)

// Main runs the tests; in a process of Start, it runs the program.
func Main(m *testing.M, main func()) {
	if os.Getenv(Env) != "" {
		main()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// RunningProgram is a running podgauge.
type RunningProgram struct {
	URL     string // of /metrics
	Started time.Time

	command      *exec.Cmd
	stderrClosed chan struct{} // closed at the end of stderr
	stderr       bytes.Buffer  // after the address; complete once stderrClosed is closed
}

// Start runs the program on a free port until the test ends. The caller sets
// the flags of folders.
func Start(t *testing.T, env []string, args ...string) *RunningProgram {
	t.Helper()
	return StartFile(t, cmp.Or(os.Getenv(binaryEnv), os.Args[0]), env, args...)
}

// StartFile is Start with the program in a file.
func StartFile(t *testing.T, file string, env []string, args ...string) *RunningProgram {
	t.Helper()
	command := exec.Command(file, append(args, "--web.listen-address=127.0.0.1:0")...)
	command.Env = append(append(os.Environ(), Env+"=1"), env...)
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	stderr, err := command.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	p := &RunningProgram{Started: time.Now(), command: command, stderrClosed: make(chan struct{})}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.stop(t) })
	lines := bufio.NewScanner(stderr)
	for p.URL == "" && lines.Scan() {
		if m := regexp.MustCompile(`listen=(\S+)`).FindStringSubmatch(lines.Text()); m != nil {
			p.URL = "http://" + m[1] + "/metrics"
		}
	}
	go func() {
		defer close(p.stderrClosed)
		io.Copy(&p.stderr, stderr)
	}()
	if p.URL == "" {
		t.Fatal("the program did not log its address")
	}
	return p
}

// Kill ends the program by SIGKILL.
func (p *RunningProgram) Kill() {
	p.command.Process.Kill()
	<-p.stderrClosed
	p.command.Wait()
}

// WaitForExit waits until the program ends, and returns the exit status and the
// log.
func (p *RunningProgram) WaitForExit(t *testing.T) (status int, log string) {
	t.Helper()
	select {
	case <-p.stderrClosed:
	case <-time.After(waitTimeout):
		t.Fatalf("the program did not end within %s", waitTimeout)
	}
	p.command.Wait()
	return p.command.ProcessState.ExitCode(), p.stderr.String()
}

func (p *RunningProgram) stop(t *testing.T) {
	if p.command.ProcessState != nil { // killed
		return
	}
	if err := p.command.Process.Signal(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	<-p.stderrClosed
	if err := p.command.Wait(); err != nil {
		t.Errorf("the program: %v", err)
	}
}

// Scrape returns the text of /metrics.
func (p *RunningProgram) Scrape(t *testing.T) string {
	t.Helper()
	response, err := http.Get(p.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// WaitUntil waits until a condition holds, for a minute at most.
func WaitUntil(t testing.TB, what string, holds func() bool) {
	t.Helper()
	poll := time.NewTicker(pollInterval)
	defer poll.Stop()
	for end := time.Now().Add(waitTimeout); !holds(); <-poll.C {
		if time.Now().After(end) {
			t.Fatalf("not within %s: %s", waitTimeout, what)
		}
	}
}

// ShortDir returns a temporary folder with a short path, as unix sockets need.
func ShortDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "pg")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// Command demo runs podgauge on a simulated node, and shows status and a metric family in the terminal while pods start and end and a GPU fails.
package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

const (
	preferredAddress = "127.0.0.1:9400"
	refreshInterval  = 2 * time.Second
	shutdownTimeout  = 3 * time.Second
)

// shownFamily is the metric family on display.
const shownFamily = "nvidia_gpu_power_watts"

// clearScreen clears a terminal.
const clearScreen = "\x1b[H\x1b[2J"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := demo(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

func demo(ctx context.Context, args []string, out io.Writer) error {
	if len(args) != 1 {
		return errors.New("want the folder of podgauge and podgauge-sim")
	}
	address, err := freeAddress()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	podgauge := exec.CommandContext(ctx, filepath.Join(args[0], "podgauge-sim"), "--web.listen-address="+address, "--log.level=error")
	podgauge.Stderr = os.Stderr
	podgauge.Cancel = func() error { return podgauge.Process.Signal(syscall.SIGTERM) }
	podgauge.WaitDelay = shutdownTimeout
	podgauge.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	if err := podgauge.Start(); err != nil {
		return fmt.Errorf("start podgauge-sim: %w", err)
	}
	exited := make(chan error, 1)
	go func() { exited <- podgauge.Wait() }() // received by display or below
	err = display(ctx, filepath.Join(args[0], "podgauge"), "http://"+address, out, exited)
	cancel()
	if err == nil {
		<-exited //nolint:errcheck // SIGTERM is not an error
	}
	return err
}

// freeAddress returns preferredAddress, or an unused port.
func freeAddress() (string, error) {
	for _, address := range []string{preferredAddress, "127.0.0.1:0"} {
		l, err := net.Listen("tcp", address)
		if err == nil {
			return l.Addr().String(), l.Close()
		}
	}
	return "", errors.New("no free port on 127.0.0.1")
}

// display prints the state of the node until ctx is done or podgauge ends.
func display(ctx context.Context, podgauge, url string, out io.Writer, exited <-chan error) error {
	header := fmt.Sprintf("A simulated node with 8 GPUs and a kubelet: pods come and go, one GPU fails, is reset and recovers.\n"+
		"Status page: %s/   metrics: curl %s/metrics   incidents: %s incidents --url %s   stop: Ctrl-C\n", url, url, podgauge, url)
	fmt.Fprint(out, header)
	tty := isTerminal(out)
	tick := time.NewTicker(refreshInterval)
	defer tick.Stop()
	for immediate := time.NewTimer(0).C; ; immediate = nil {
		select {
		case <-ctx.Done():
			return nil
		case err := <-exited:
			if ctx.Err() != nil { // the terminal sends SIGINT to both processes
				return nil
			}
			return fmt.Errorf("podgauge-sim ended: %w", cmp.Or(err, errors.New("exit status 0")))
		case <-immediate:
		case <-tick.C:
		}
		lines, err := scrape(ctx, url+"/metrics")
		if err != nil || len(lines) == 0 {
			continue // still starting, or ending
		}
		table, err := exec.CommandContext(ctx, podgauge, "status", "--url", url).Output()
		if err != nil {
			continue // likewise
		}
		if tty {
			fmt.Fprint(out, clearScreen, header)
		}
		fmt.Fprintf(out, "\n── %s\n%s\n%s", time.Now().Format(time.TimeOnly), table, strings.Join(lines, ""))
	}
}

// isTerminal reports whether out is a terminal, not a file or a pipe.
func isTerminal(out io.Writer) bool {
	file, ok := out.(*os.File)
	if !ok {
		return false
	}
	info, err := file.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// scrape returns the lines of shownFamily.
func scrape(ctx context.Context, url string) ([]string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close() //nolint:errcheck // read only
	var lines []string
	scanner := bufio.NewScanner(resp.Body)
	for scanner.Scan() {
		if name, _, _ := strings.Cut(scanner.Text(), "{"); name == shownFamily {
			lines = append(lines, scanner.Text()+"\n")
		}
	}
	return lines, scanner.Err()
}

// Command demo runs podgauge-sim, podgauge on a simulated node, and shows, in this terminal, what
// podgauge says of it, and of the series that Prometheus would scrape one for each
// GPU, as pods come and go and a GPU fails.
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
	wantedAddress = "127.0.0.1:9400"
	every         = 2 * time.Second
	leaveBy       = 3 * time.Second
)

// shown is the family that is printed, of more than a hundred.
const shown = "nvidia_gpu_power_watts"

// clear empties a terminal and goes to its top.
const clear = "\x1b[H\x1b[2J"

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
	podgauge.WaitDelay = leaveBy
	podgauge.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	if err := podgauge.Start(); err != nil {
		return fmt.Errorf("start podgauge-sim: %w", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- podgauge.Wait() }() // waited for below, whatever ends first
	err = show(ctx, filepath.Join(args[0], "podgauge"), "http://"+address, out, ended)
	cancel()
	if err == nil {
		<-ended //nolint:errcheck // that it was told to end is no error
	}
	return err
}

// freeAddress is the usual one, or any other where that is taken.
func freeAddress() (string, error) {
	for _, address := range []string{wantedAddress, "127.0.0.1:0"} {
		l, err := net.Listen("tcp", address)
		if err == nil {
			return l.Addr().String(), l.Close()
		}
	}
	return "", errors.New("no free port on 127.0.0.1")
}

// show prints the node until ctx is done, or podgauge has ended by itself.
func show(ctx context.Context, podgauge, url string, out io.Writer, ended <-chan error) error {
	where := fmt.Sprintf("A simulated node with 8 GPUs and a kubelet: pods come and go, one GPU fails, is reset and recovers.\n"+
		"Its page: %s/   all series: curl %s/metrics   what happened: %s incidents --url %s   end: Ctrl-C\n", url, url, podgauge, url)
	fmt.Fprint(out, where)
	live := isTerminal(out)
	tick := time.NewTicker(every)
	defer tick.Stop()
	for wait := time.NewTimer(0).C; ; wait = nil {
		select {
		case <-ctx.Done():
			return nil
		case err := <-ended:
			if ctx.Err() != nil { // the terminal has told both to end
				return nil
			}
			return fmt.Errorf("podgauge-sim ended: %w", cmp.Or(err, errors.New("by itself")))
		case <-wait:
		case <-tick.C:
		}
		lines, err := scrape(ctx, url+"/metrics")
		if err != nil || len(lines) == 0 {
			continue // it has only just started, or the end has come meanwhile
		}
		table, err := exec.CommandContext(ctx, podgauge, "status", "--url", url).Output()
		if err != nil {
			continue // likewise
		}
		if live {
			fmt.Fprint(out, clear, where)
		}
		fmt.Fprintf(out, "\n── %s\n%s\n%s", time.Now().Format(time.TimeOnly), table, strings.Join(lines, ""))
	}
}

// isTerminal tells whether there is a screen to redraw, and not a file or a pipe.
func isTerminal(out io.Writer) bool {
	file, ok := out.(*os.File)
	if !ok {
		return false
	}
	info, err := file.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// scrape returns the lines of the family that is shown.
func scrape(ctx context.Context, url string) ([]string, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return nil, err
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close() //nolint:errcheck // it was read
	var lines []string
	text := bufio.NewScanner(answer.Body)
	for text.Scan() {
		if name, _, _ := strings.Cut(text.Text(), "{"); name == shown {
			lines = append(lines, text.Text()+"\n")
		}
	}
	return lines, text.Err()
}

// Command demo runs podgauge on a simulated node, and shows status and a metric
// family in the terminal while pods start and end and a GPU fails.
package main

import (
	"bufio"
	"context"
	"fmt"
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
	address         = "127.0.0.1:9400"
	refreshInterval = 2 * time.Second
	shutdownTimeout = 3 * time.Second
	shownFamily     = "nvidia_gpu_power_watts"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := demo(ctx, os.Args[1])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

// demo runs the programs in a folder until ctx is done.
func demo(ctx context.Context, dir string) error {
	podgauge := exec.CommandContext(ctx, filepath.Join(dir, "podgauge-sim"), "--web.listen-address="+address,
		"--log.level=error")
	podgauge.Stderr = os.Stderr
	podgauge.Cancel = func() error { return podgauge.Process.Signal(syscall.SIGTERM) }
	podgauge.WaitDelay = shutdownTimeout
	podgauge.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	if err := podgauge.Start(); err != nil {
		return err
	}
	fmt.Printf("A simulated node with 8 GPUs and a kubelet: pods come and go, one GPU fails, is reset and recovers.\n"+
		"Status page: http://%s/   metrics: curl %s/metrics   incidents: %s/podgauge incidents   stop: Ctrl-C\n",
		address, address, dir)
	go func() { // ends with the process
		for tick := time.NewTicker(refreshInterval); ; <-tick.C {
			show(ctx, filepath.Join(dir, "podgauge"))
		}
	}()
	if err := podgauge.Wait(); err != nil && ctx.Err() == nil {
		return fmt.Errorf("podgauge-sim ended: %w", err)
	}
	return nil
}

// show prints the state of the node, unless podgauge is starting or ending.
func show(ctx context.Context, podgauge string) {
	table, err := exec.CommandContext(ctx, podgauge, "status").Output()
	if err != nil {
		return
	}
	fmt.Printf("\n── %s\n%s\n", time.Now().Format(time.TimeOnly), table)
	resp, err := http.Get("http://" + address + "/metrics") //nolint:noctx // the demo ends with the process
	if err != nil {
		return
	}
	defer resp.Body.Close() //nolint:errcheck // read only
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		if strings.HasPrefix(lines.Text(), shownFamily+"{") {
			fmt.Println(lines.Text())
		}
	}
}

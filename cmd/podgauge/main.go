// Command podgauge is the device plugin for a node's NVIDIA GPUs and exports
// their metrics, labelled with the pod that holds each.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
)

// version is stamped by the Makefile.
var version = "dev"

// Exit statuses.
const (
	exitOK    = 0
	exitError = 1
	exitUsage = 2
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	status := run(ctx, os.Args[1:], os.Getenv, os.Stdout, os.Stderr)
	stop()
	os.Exit(status)
}

// run is the program. It returns the exit status.
func run(ctx context.Context, args []string, getenv func(string) string, stdout, stderr io.Writer) int {
	c, err := parse(args, getenv, stderr)
	switch {
	case isHelp(err):
		return exitOK
	case err != nil:
		fmt.Fprintln(stderr, "podgauge:", err)
		return exitUsage
	case c.version:
		fmt.Fprintln(stdout, "podgauge", version)
		return exitOK
	}
	if err := start(ctx, c, c.logger(stderr)); err != nil {
		fmt.Fprintln(stderr, "podgauge:", err)
		return exitError
	}
	return exitOK
}

// Command image looks into podgauge's container images, as OCI archives, and runs them.
//
// It reads the archives itself, so that nothing stands between it and what is delivered. Its exit status is 0 where all
// holds.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
)

const usage = `usage: go run . [-run] archive ...
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	status := do(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(status)
}

func do(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("image", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Usage = func() { fmt.Fprint(stderr, usage); flags.PrintDefaults() }
	alive := flags.Bool("run", false, "run podgauge from the images as well, as root with runc; with qemu-user-static those of other machines")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	if flags.NArg() == 0 {
		flags.Usage()
		return 2
	}
	status := 0
	for _, archive := range flags.Args() {
		if !look(ctx, archive, *alive, stdout) {
			status = 1
		}
	}
	return status
}

// look says of each check whether it holds, and returns whether all do.
func look(ctx context.Context, archive string, alive bool, out io.Writer) bool {
	holds := true
	say := func(name, found string, err error) {
		verdict := "ok"
		if err != nil {
			holds, verdict, found = false, "FAILED", err.Error()
		}
		fmt.Fprintf(out, "%-7s %s: %s\n", verdict, name, found)
	}
	img, err := readImage(archive)
	if err != nil {
		say("archive", "", err)
		return false
	}
	fmt.Fprintf(out, "%s: %.1f MB, %.1f MB unpacked\n", archive, float64(img.compressed)/1e6, float64(img.uncompressed)/1e6)
	for _, check := range checks {
		found, err := check.of(img)
		say(check.name, found, err)
	}
	if alive {
		runAll(ctx, img, say)
	}
	return holds
}

func runAll(ctx context.Context, img *image, say func(name, found string, err error)) {
	dir, err := os.MkdirTemp("", "podgauge-image-")
	if err != nil {
		say("run", "", err)
		return
	}
	defer os.RemoveAll(dir)
	r, err := start(ctx, img, dir)
	if err != nil {
		say("run", "", err)
		return
	}
	r.do(ctx, say)
}

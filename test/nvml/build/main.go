// Command build compiles the stand-in for libnvidia-ml.so.1 into a folder and
// prints the library's path.
package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"strings"

	nvmltest "github.com/podgauge/podgauge/test/nvml"
)

func main() { os.Exit(runMain(os.Args[1:], os.Stdout, os.Stderr)) }

func runMain(args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("build", flag.ContinueOnError)
	flags.SetOutput(stderr)
	dir := flags.String("o", "", "`folder` for the library; created if missing")
	hide := flags.String("hide", "", "`functions` to leave out, separated by commas")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	if *dir == "" || flags.NArg() > 0 {
		fmt.Fprintln(stderr, "usage: build -o folder [-hide function,function]")
		return 2
	}
	var hidden []string
	if *hide != "" {
		hidden = strings.Split(*hide, ",")
	}
	if err := os.MkdirAll(*dir, 0o755); err != nil {
		fmt.Fprintln(stderr, err)
		return 1
	}
	lib, err := nvmltest.Build(*dir, hidden...)
	if err != nil {
		fmt.Fprintln(stderr, err)
		return 1
	}
	fmt.Fprintln(stdout, lib)
	return 0
}

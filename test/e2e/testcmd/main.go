// Command testcmd is the program /box of the test image, and the first process
// of a node. The arguments select the action of a container.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strconv"
	"syscall"
	"time"
)

const usage = `box pause              until SIGTERM
box sleep <duration>   SIGTERM ends with status 143
box stubborn           until SIGKILL: SIGTERM is ignored
box family <children>  like pause, with this number of children
box exit <status>      at once
box guard <file>       like pause, then writes 1 to the file
`

// readyName is the name of the process after it handles SIGTERM. EndPod in
// test/e2e waits for this name.
const readyName = "box-ready"

func main() { os.Exit(run(os.Args[1:], os.Stderr)) }

func run(args []string, stderr io.Writer) int {
	terminated := make(chan os.Signal, 1)
	signal.Notify(terminated, syscall.SIGTERM, syscall.SIGINT)
	_ = os.WriteFile("/proc/self/comm", []byte(readyName), 0) // no effect outside Linux
	go reapOrphans()
	status, err := runCommand(args, terminated)
	if err != nil {
		fmt.Fprintf(stderr, "box: %v\n%s", err, usage)
		return 2
	}
	return status
}

func runCommand(args []string, terminated <-chan os.Signal) (status int, err error) {
	switch {
	case slices.Equal(args, []string{"pause"}):
		<-terminated
		return 0, nil
	case slices.Equal(args, []string{"stubborn"}):
		select {}
	case len(args) == 2 && args[0] == "exit":
		return strconv.Atoi(args[1])
	case len(args) == 2 && args[0] == "guard":
		<-terminated
		return 0, os.WriteFile(args[1], []byte("1"), 0)
	case len(args) == 2 && args[0] == "family":
		children, err := strconv.Atoi(args[1])
		if err != nil {
			return 0, err
		}
		if err := startChildren(children); err != nil {
			return 0, err
		}
		<-terminated
		return 0, nil
	case len(args) == 2 && args[0] == "sleep":
		d, err := time.ParseDuration(args[1])
		if err != nil {
			return 0, err
		}
		select {
		case <-time.After(d):
			return 0, nil
		case <-terminated:
			return 128 + int(syscall.SIGTERM), nil
		}
	}
	return 0, errors.New("unknown arguments")
}

// startChildren starts processes with the command pause. A container ends with
// its first process.
func startChildren(children int) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	for range children {
		if err := exec.Command(self, "pause").Start(); err != nil { // reapOrphans waits
			return err
		}
	}
	return nil
}

// reapOrphans waits for orphans, such as containerd's shims. The first process
// of a PID namespace is their parent.
func reapOrphans() {
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGCHLD)
	for range ended {
		for {
			if pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); err != nil || pid <= 0 {
				break
			}
		}
	}
}

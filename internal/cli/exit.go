package cli

import (
	"errors"
	"fmt"
	"io"

	"github.com/podgauge/podgauge/internal/text"
)

// Exit statuses, as of kubectl.
const (
	ExitOK    = 0
	ExitError = 1
	ExitUsage = 2
)

// failure is an error of a command that began.
type failure struct{ error }

func (f failure) Unwrap() error { return f.error }

// Failed marks the error of a command that began: exit status 1. All other
// errors are of the command line: exit status 2.
func Failed(err error) error {
	if err == nil {
		return nil
	}
	return failure{err}
}

// ErrReported is the failure of a command whose output has the problems.
var ErrReported = Failed(errors.New("problems found"))

// Exit prints an error as one line, and returns the exit status.
func Exit(stderr io.Writer, prefix string, err error) int {
	if err == nil {
		return ExitOK
	}
	if !errors.Is(err, ErrReported) {
		fmt.Fprintf(stderr, "%s: %s\n", prefix, text.Printable(err.Error()))
	}
	if _, began := errors.AsType[failure](err); began {
		return ExitError
	}
	return ExitUsage
}

// Package text formats numbers, times, errors and untrusted names for people,
// and checks addresses.
package text

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// maxNames is the number of names in a list.
const maxNames = 3

// Plural returns "1 GPU" or "2 GPUs".
func Plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return strconv.Itoa(n) + " " + noun + "s"
}

// Each returns the text of each item.
func Each[T any, S ~string](items []T, of func(T) S) []S {
	texts := make([]S, len(items))
	for i, item := range items {
		texts[i] = of(item)
	}
	return texts
}

// JoinFirst joins the first names, and adds the number of further names.
func JoinFirst(names []string) string {
	if more := len(names) - maxNames; more > 0 {
		return fmt.Sprintf("%s, %d more", strings.Join(names[:maxNames], ", "), more)
	}
	return strings.Join(names, ", ")
}

var (
	invalidLabelChar = regexp.MustCompile(`[^a-zA-Z0-9_]`)
	wordStart        = regexp.MustCompile(`([a-z0-9])([A-Z])`)
)

// SnakeCase returns a Kubernetes label as kube-state-metrics names it:
// "node_pool" for "node-pool" and for "nodePool".
func SnakeCase(name string) string {
	return strings.ToLower(wordStart.ReplaceAllString(invalidLabelChar.ReplaceAllString(name, "_"), "${1}_$2"))
}

// Duration returns a duration of at least a second in one unit: "3 min".
func Duration(d time.Duration) string {
	const day = 24 * time.Hour
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%d s", d/time.Second)
	case d < time.Hour:
		return fmt.Sprintf("%d min", d/time.Minute)
	case d < 2*day:
		return fmt.Sprintf("%d h", d/time.Hour)
	}
	return fmt.Sprintf("%d days", d/day)
}

// Printable replaces characters without a glyph by U+FFFD. An escape sequence
// must not move a terminal's cursor, and a change of direction must not
// disguise a name.
func Printable(s string) string { return strings.Map(printable, s) }

// PrintableLines is Printable for a text of several lines.
func PrintableLines(s string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' {
			return r
		}
		return printable(r)
	}, s)
}

func printable(r rune) rune {
	if ' ' <= r && r <= '~' || unicode.IsPrint(r) { // nearly all text is ASCII
		return r
	}
	return unicode.ReplacementChar
}

var (
	keyName = regexp.MustCompile(`^[-\w./\[\]]{1,253}$`)
	// yamlContent matches the parts of a YAML library's errors that have
	// content of the file: keys, and the beginnings of values.
	yamlContent = regexp.MustCompile("(?s)(field |key \"|cannot unmarshal !!\\w+ `)(.*?)( not found|\" already|` into)")
)

// OfName returns a name of a file, and a placeholder for other content, which
// may be a secret: the file may be of another program.
func OfName(s string) string {
	if keyName.MatchString(s) {
		return s
	}
	return "(not a name)"
}

// YAMLError returns the message of a YAML library's error without content of
// the file, except for names.
func YAMLError(err error) string {
	return yamlContent.ReplaceAllStringFunc(err.Error(), func(found string) string {
		part := yamlContent.FindStringSubmatch(found)
		return part[1] + OfName(part[2]) + part[3]
	})
}

// maxSocketPath is the length of sun_path in unix(7), without the NUL.
const maxSocketPath = 107

// CheckSocketPath returns an error if a path is too long for a socket: the
// kernel's error does not mention the length.
func CheckSocketPath(path string) error {
	if len(path) > maxSocketPath {
		return fmt.Errorf("%s: %d bytes, at most %d for a socket", path, len(path), maxSocketPath)
	}
	return nil
}

// FileError returns a library's error on a flag's file as a single line.
func FileError(flag, file string, err error) error {
	if pathErr, ok := errors.AsType[*fs.PathError](err); ok && pathErr.Path == file {
		err = pathErr.Err // without a second name
	}
	return fmt.Errorf("%s %q: %s", flag, file, Printable(strings.Join(strings.Fields(YAMLError(err)), " ")))
}

// CheckAddress checks the port of an address. Port 0 is any free port.
func CheckAddress(address string) error {
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return errors.New("expected host:port or :port")
	}
	if port == "" {
		return errors.New("expected a port")
	}
	if _, err := net.LookupPort("tcp", port); err != nil {
		return fmt.Errorf("%q: not a port", port)
	}
	return nil
}

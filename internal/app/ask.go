package app

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/podgauge/podgauge/internal/web/api"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"
)

const (
	// patience is how long an answer may take, and mostAnswer how long it may be.
	patience   = 10 * time.Second
	mostAnswer = 32 << 20
	// redrawAfter is how long a table on a terminal stands.
	redrawAfter = 2 * time.Second
)

// question is a command that asks a running podgauge: `podgauge status`.
type question struct {
	path  string
	table func(body []byte) ([]string, table, error)
	// filters are the flags that the API knows by the same name.
	filters map[string]*string
	asked   url.Values

	base          string // of the URL
	listenAddress string
	configFile    string
	transport     http.RoundTripper
	output        string
	watch         bool
	again         time.Duration // between two tables of a watch
	// terminal says that somebody looks on, and colour that colours help.
	terminal, colour bool
}

// questions are such commands, and what they show.
var questions = map[string]question{
	"status":    {path: api.DevicesPath, table: statusTable},
	"incidents": {path: api.IncidentsPath, table: incidentsTable},
}

// ask runs such a command, and returns the exit status.
func ask(ctx context.Context, command string, args []string, lookupEnv lookup, stdout, stderr io.Writer) int {
	q := questions[command]
	if err := q.parse(command, args, stderr); err != nil {
		if isHelp(err) {
			return exitOK
		}
		fmt.Fprintf(stderr, "podgauge %s: %s\n", command, printable(err.Error()))
		return exitUsage
	}
	q.terminal = isTerminal(stdout)
	noColour, _ := lookupEnv("NO_COLOR") // https://no-color.org
	q.colour = q.terminal && noColour == ""
	if err := q.run(ctx, stdout); err != nil {
		fmt.Fprintf(stderr, "podgauge %s: %s\n", command, printable(err.Error()))
		return exitError
	}
	return exitOK
}

// flags declares the command line. docs/operations.md shows it.
func (q *question) flags(command string) *pflag.FlagSet {
	f := pflag.NewFlagSet("podgauge "+command, pflag.ContinueOnError)
	f.SortFlags = false
	f.StringVarP(&q.output, "output", "o", "table", "`form` of the answer: table, or json as the API gives it")
	f.BoolVarP(&q.watch, "watch", "w", false, "draw the table anew every two seconds; without a terminal it is shown once")
	f.StringVar(&q.base, "url", "", "`address` of podgauge (default http://127.0.0.1 and the port of --web.listen-address; https://127.0.0.1 where --http.config.file has a tls_config)")
	f.StringVar(&q.configFile, "http.config.file", "", "`file` with the password, and with what TLS needs, to reach podgauge; as promtool takes it")
	f.StringVar(&q.listenAddress, "web.listen-address", ":9400", "`address` that the daemon was given")
	q.filters = map[string]*string{}
	if q.path == api.IncidentsPath {
		filter := func(name, short, usage string) { q.filters[name] = f.StringP(name, short, "", usage) }
		filter("device", "d", "only of this `device`, by UUID, or of a GPU and its slices, by UUID or index")
		filter("namespace", "n", "only those that hit a pod in this `namespace`")
		filter("pod", "p", "only those that hit a pod of this `name`")
		filter("reason", "", "only for this `reason`: xid_79")
		filter("since", "", "only those that last happened since this `time`, or for so long: 2006-01-02T15:04:05Z, 90m, 24h")
		filter("limit", "", fmt.Sprintf("only so `many`, the newest, up to %d (default %d)", api.MostLimit, api.DefaultLimit))
	}
	return f
}

func (q *question) parse(command string, args []string, usage io.Writer) error {
	f := q.flags(command)
	f.SetOutput(usage)
	f.Usage = func() { fmt.Fprintf(usage, "Usage: podgauge %s [flags]\n\n%s", command, f.FlagUsages()) }
	if err := f.Parse(twoDashes(f, args)); err != nil {
		return wrongFlag(err)
	}
	if f.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", f.Arg(0))
	}
	q.asked = url.Values{}
	var takes []string
	for name, value := range q.filters {
		takes = append(takes, name)
		if f.Changed(name) {
			q.asked.Set(name, *value)
		}
	}
	// What the daemon would refuse is refused here, as a wrong command line.
	if _, err := api.ParseQuery(q.asked.Encode(), takes, time.Now()); err != nil {
		return fmt.Errorf("--%w", err)
	}
	if q.output != "table" && q.output != "json" {
		return fmt.Errorf("--output %q: want table or json", q.output)
	}
	scheme, transport, err := connect(q.configFile)
	if err != nil {
		return wrongFile("--http.config.file", q.configFile, err)
	}
	q.transport = transport
	return q.resolve(scheme)
}

// resolve finds where podgauge listens. Whoever listens everywhere listens on localhost.
func (q *question) resolve(scheme string) error {
	if q.base != "" {
		u, err := url.Parse(q.base)
		switch {
		case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
			return fmt.Errorf("--url %q: want http://host:port or https://host:port", q.base)
		case u.User != nil: // all who see the processes would see it
			return errors.New("--url: want no name and password in it: --http.config.file has them")
		}
		q.base = strings.TrimSuffix(q.base, "/")
		return nil
	}
	if err := checkAddress(q.listenAddress); err != nil {
		return fmt.Errorf("--web.listen-address %q: %w", q.listenAddress, err)
	}
	host, port, _ := net.SplitHostPort(q.listenAddress) // checked
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	q.base = scheme + "://" + net.JoinHostPort(host, port)
	return nil
}

// run asks once, or until ctx is done.
func (q *question) run(ctx context.Context, stdout io.Writer) error {
	if !q.watch || !q.terminal {
		text, err := q.text(ctx)
		if err == nil {
			_, err = io.WriteString(stdout, text)
		}
		return err
	}
	again := time.NewTicker(cmp.Or(q.again, redrawAfter))
	defer again.Stop()
	if _, err := io.WriteString(stdout, clearScreen); err != nil {
		return err
	}
	for {
		text, err := q.text(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			text = printable(err.Error()) + "\n"
		}
		if _, err := io.WriteString(stdout, redrawn(text)); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-again.C:
		}
	}
}

// What a terminal is told (ECMA-48). A screen is written over rather than cleared first,
// so that it does not flicker.
const (
	clearScreen = "\x1b[2J"
	home        = "\x1b[H"
	clearRight  = "\x1b[K"
	clearBelow  = "\x1b[J"
)

func redrawn(text string) string {
	return home + strings.ReplaceAll(text, "\n", clearRight+"\n") + clearBelow
}

// text is the answer as it is shown.
func (q *question) text(ctx context.Context) (string, error) {
	body, err := q.answer(ctx)
	switch {
	case err != nil:
		return "", err
	case q.output == "json" && q.terminal:
		return printableLines(string(body)), nil
	case q.output == "json":
		return string(body), nil
	}
	lines, t, err := q.table(body)
	if err != nil {
		return "", fmt.Errorf("%s: the answer is not podgauge's: %w", q.base, err)
	}
	var text strings.Builder
	for _, line := range lines {
		text.WriteString(printable(line) + "\n")
	}
	t.write(&text, q.colour)
	return text.String(), nil
}

// answer is what podgauge says.
func (q *question) answer(ctx context.Context) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(q.base+q.path+"?"+q.asked.Encode(), "?"), http.NoBody)
	if err != nil {
		return nil, err
	}
	client := http.Client{
		Transport:     q.transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	answer, err := client.Do(r)
	if err != nil {
		if wrapped, ok := errors.AsType[*url.Error](err); ok {
			err = wrapped.Err // the address is said already
		}
		return nil, fmt.Errorf("no answer from %s: %w; --url says where podgauge is", q.base, err)
	}
	defer answer.Body.Close() //nolint:errcheck // it was read
	body, err := io.ReadAll(io.LimitReader(answer.Body, mostAnswer+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("read the answer of %s: %w", q.base, err)
	case len(body) > mostAnswer:
		return nil, fmt.Errorf("the answer of %s has more than %d bytes", q.base, mostAnswer)
	case answer.StatusCode != http.StatusOK:
		var said api.Error
		_ = json.Unmarshal(body, &said) // others than podgauge say nothing that is wanted
		return nil, fmt.Errorf("%s answers %s%s", q.base, cmp.Or(said.Error, strconv.Itoa(answer.StatusCode)+" "+http.StatusText(answer.StatusCode)), advice(answer.StatusCode, body))
	}
	return body, nil
}

// isTerminal tells whether somebody looks on.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

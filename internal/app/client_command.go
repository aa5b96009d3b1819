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
	// requestTimeout is how long an answer may take, and maxResponseBytes how long it may be.
	requestTimeout   = 10 * time.Second
	maxResponseBytes = 32 << 20
	// redrawInterval is how long a table on a terminal stands.
	redrawInterval = 2 * time.Second
)

// clientCommand is a command that asks a running podgauge: `podgauge status`.
type clientCommand struct {
	path  string
	table func(body []byte) ([]string, textTable, error)
	// filters are the flags that the API knows by the same name.
	filters map[string]*string
	query   url.Values

	baseURL       string // of the URL
	listenAddress string
	configFile    string
	transport     http.RoundTripper
	output        string
	watch         bool
	watchInterval time.Duration // between two tables of a watch
	// terminal says that somebody looks on, and colour that colours help.
	terminal, color bool
}

// clientCommands are such commands, and what they show.
var clientCommands = map[string]clientCommand{
	"status":    {path: api.DevicesPath, table: statusTable},
	"incidents": {path: api.IncidentsPath, table: incidentsTable},
}

// runClient runs such a command, and returns the exit status.
func runClient(ctx context.Context, command string, args []string, lookupEnv envLookup, stdout, stderr io.Writer) int {
	c := clientCommands[command]
	if err := c.parse(command, args, stderr); err != nil {
		if isHelp(err) {
			return exitOK
		}
		fmt.Fprintf(stderr, "podgauge %s: %s\n", command, sanitize(err.Error()))
		return exitUsage
	}
	c.terminal = isTerminal(stdout)
	noColor, _ := lookupEnv("NO_COLOR") // https://no-color.org
	c.color = c.terminal && noColor == ""
	if err := c.run(ctx, stdout); err != nil {
		fmt.Fprintf(stderr, "podgauge %s: %s\n", command, sanitize(err.Error()))
		return exitError
	}
	return exitOK
}

// flagSet declares the command line. docs/operations.md shows it.
func (c *clientCommand) flagSet(command string) *pflag.FlagSet {
	f := pflag.NewFlagSet("podgauge "+command, pflag.ContinueOnError)
	f.SortFlags = false
	f.StringVarP(&c.output, "output", "o", "table", "`form` of the answer: table, or json as the API gives it")
	f.BoolVarP(&c.watch, "watch", "w", false, "draw the table anew every two seconds; without a terminal it is shown once")
	f.StringVar(&c.baseURL, "url", "", "`address` of podgauge (default http://127.0.0.1 and the port of --web.listen-address; https://127.0.0.1 where --http.config.file has a tls_config)")
	f.StringVar(&c.configFile, "http.config.file", "", "`file` with the password, and with what TLS needs, to reach podgauge; as promtool takes it")
	f.StringVar(&c.listenAddress, "web.listen-address", ":9400", "`address` that the daemon was given")
	c.filters = map[string]*string{}
	if c.path == api.IncidentsPath {
		filter := func(name, short, usage string) { c.filters[name] = f.StringP(name, short, "", usage) }
		filter("device", "d", "only of this `device`, by UUID, or of a GPU and its slices, by UUID or index")
		filter("namespace", "n", "only those that hit a pod in this `namespace`")
		filter("pod", "p", "only those that hit a pod of this `name`")
		filter("reason", "", "only for this `reason`: xid_79")
		filter("since", "", "only those that last happened since this `time`, or for so long: 2006-01-02T15:04:05Z, 90m, 24h")
		filter("limit", "", fmt.Sprintf("only so `many`, the newest, up to %d (default %d)", api.MaxLimit, api.DefaultLimit))
	}
	return f
}

func (c *clientCommand) parse(command string, args []string, usage io.Writer) error {
	f := c.flagSet(command)
	f.SetOutput(usage)
	f.Usage = func() { fmt.Fprintf(usage, "Usage: podgauge %s [flags]\n\n%s", command, f.FlagUsages()) }
	if err := f.Parse(normalizeDashes(f, args)); err != nil {
		return flagError(err)
	}
	if f.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", f.Arg(0))
	}
	c.query = url.Values{}
	var allowed []string
	for name, value := range c.filters {
		allowed = append(allowed, name)
		if f.Changed(name) {
			c.query.Set(name, *value)
		}
	}
	// What the daemon would refuse is refused here, as a wrong command line.
	if _, err := api.ParseQuery(c.query.Encode(), allowed, time.Now()); err != nil {
		return fmt.Errorf("--%w", err)
	}
	if c.output != "table" && c.output != "json" {
		return fmt.Errorf("--output %q: want table or json", c.output)
	}
	scheme, transport, err := clientTransport(c.configFile)
	if err != nil {
		return fileError("--http.config.file", c.configFile, err)
	}
	c.transport = transport
	return c.resolveURL(scheme)
}

// resolveURL finds where podgauge listens. Whoever listens everywhere listens on localhost.
func (c *clientCommand) resolveURL(scheme string) error {
	if c.baseURL != "" {
		u, err := url.Parse(c.baseURL)
		switch {
		case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
			return fmt.Errorf("--url %q: want http://host:port or https://host:port", c.baseURL)
		case u.User != nil: // all who see the processes would see it
			return errors.New("--url: want no name and password in it: --http.config.file has them")
		}
		c.baseURL = strings.TrimSuffix(c.baseURL, "/")
		return nil
	}
	if err := checkAddress(c.listenAddress); err != nil {
		return fmt.Errorf("--web.listen-address %q: %w", c.listenAddress, err)
	}
	host, port, _ := net.SplitHostPort(c.listenAddress) // checked
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	c.baseURL = scheme + "://" + net.JoinHostPort(host, port)
	return nil
}

// run asks once, or until ctx is done.
func (c *clientCommand) run(ctx context.Context, stdout io.Writer) error {
	if !c.watch || !c.terminal {
		text, err := c.render(ctx)
		if err == nil {
			_, err = io.WriteString(stdout, text)
		}
		return err
	}
	ticker := time.NewTicker(cmp.Or(c.watchInterval, redrawInterval))
	defer ticker.Stop()
	if _, err := io.WriteString(stdout, clearScreen); err != nil {
		return err
	}
	for {
		text, err := c.render(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			text = sanitize(err.Error()) + "\n"
		}
		if _, err := io.WriteString(stdout, redraw(text)); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// What a terminal is told (ECMA-48). A screen is written over rather than cleared first,
// so that it does not flicker.
const (
	clearScreen    = "\x1b[2J"
	cursorHome     = "\x1b[H"
	eraseLineRight = "\x1b[K"
	eraseBelow     = "\x1b[J"
)

func redraw(text string) string {
	return cursorHome + strings.ReplaceAll(text, "\n", eraseLineRight+"\n") + eraseBelow
}

// render is the answer as it is shown.
func (c *clientCommand) render(ctx context.Context) (string, error) {
	body, err := c.fetch(ctx)
	switch {
	case err != nil:
		return "", err
	case c.output == "json" && c.terminal:
		return sanitizeLines(string(body)), nil
	case c.output == "json":
		return string(body), nil
	}
	lines, t, err := c.table(body)
	if err != nil {
		return "", fmt.Errorf("%s: the answer is not podgauge's: %w", c.baseURL, err)
	}
	var text strings.Builder
	for _, line := range lines {
		text.WriteString(sanitize(line) + "\n")
	}
	t.write(&text, c.color)
	return text.String(), nil
}

// fetch is what podgauge says.
func (c *clientCommand) fetch(ctx context.Context) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(c.baseURL+c.path+"?"+c.query.Encode(), "?"), http.NoBody)
	if err != nil {
		return nil, err
	}
	client := http.Client{
		Transport:     c.transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	resp, err := client.Do(req)
	if err != nil {
		if wrapped, ok := errors.AsType[*url.Error](err); ok {
			err = wrapped.Err // the address is said already
		}
		return nil, fmt.Errorf("no answer from %s: %w; --url says where podgauge is", c.baseURL, err)
	}
	defer resp.Body.Close() //nolint:errcheck // it was read
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxResponseBytes+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("read the answer of %s: %w", c.baseURL, err)
	case len(body) > maxResponseBytes:
		return nil, fmt.Errorf("the answer of %s has more than %d bytes", c.baseURL, maxResponseBytes)
	case resp.StatusCode != http.StatusOK:
		var apiErr api.ErrorResponse
		_ = json.Unmarshal(body, &apiErr) // others than podgauge say nothing that is wanted
		return nil, fmt.Errorf("%s answers %s%s", c.baseURL, cmp.Or(apiErr.Error, strconv.Itoa(resp.StatusCode)+" "+http.StatusText(resp.StatusCode)), errorHint(resp.StatusCode, body))
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

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
	"strings"
	"time"

	"github.com/podgauge/podgauge/internal/retry"
	"github.com/podgauge/podgauge/internal/text"
	"github.com/podgauge/podgauge/internal/web/api"
	"github.com/prometheus/common/config"
	"github.com/spf13/pflag"
)

const (
	requestTimeout   = 10 * time.Second
	maxResponseBytes = 32 << 20
	maxErrorBytes    = 200
	redrawInterval   = 2 * time.Second
)

// clientCommand is a query of a running podgauge: `podgauge status`.
type clientCommand struct {
	path  string
	table func(body []byte) (lines []string, rows [][]string, err error)
	query url.Values

	baseURL       string
	listenAddress string
	configFile    string
	transport     http.RoundTripper
	output        string
	watch         bool
	terminal      bool // the output is a terminal
}

var clientCommands = map[string]clientCommand{
	"status":    {path: api.DevicesPath, table: statusTable},
	"incidents": {path: api.IncidentsPath, table: incidentsTable},
}

// runClient runs a client command, and returns the exit status.
func runClient(ctx context.Context, command string, args []string, stdout, stderr io.Writer) int {
	c := clientCommands[command]
	status, err := exitUsage, c.parse(command, args, stderr)
	if isHelp(err) {
		return exitOK
	}
	if err == nil {
		c.terminal = isTerminal(stdout)
		status, err = exitError, c.run(ctx, stdout)
	}
	if err != nil {
		fmt.Fprintf(stderr, "podgauge %s: %s\n", command, text.Printable(err.Error()))
		return status
	}
	return exitOK
}

// flagSet declares the flags, and the filters, which have the names of the API. docs/operations.md lists the flags.
func (c *clientCommand) flagSet(command string) (f *pflag.FlagSet, filters map[string]*string) {
	f = pflag.NewFlagSet("podgauge "+command, pflag.ContinueOnError)
	f.SortFlags = false
	f.StringVarP(&c.output, "output", "o", "table", "output `format`: table, or json as returned by the API")
	f.BoolVarP(&c.watch, "watch", "w", false, "redraw the table every two seconds; without a terminal, print once")
	f.StringVar(&c.baseURL, "url", "", "`address` of podgauge (default http://127.0.0.1 with the port of --web.listen-address; https://127.0.0.1 if --http.config.file has a tls_config)")
	f.StringVar(&c.configFile, "http.config.file", "", "`file` with password and TLS settings for requests, in promtool's format")
	f.StringVar(&c.listenAddress, "web.listen-address", ":9400", "listen `address` of the daemon")
	filters = map[string]*string{}
	if c.path == api.IncidentsPath {
		filter := func(name, short, usage string) { filters[name] = f.StringP(name, short, "", usage) }
		filter("device", "d", "only incidents of this `device` (UUID), or of a GPU with all MIG devices (UUID or index)")
		filter("namespace", "n", "only incidents affecting a pod in this `namespace`")
		filter("pod", "p", "only incidents affecting a pod with this `name`")
		filter("reason", "", "only incidents with this `reason`: xid_79")
		filter("since", "", "only incidents since this `time`, or within this duration: 2006-01-02T15:04:05Z, 90m, 24h")
		filter("limit", "", fmt.Sprintf("at most this `number` of incidents, newest first, up to %d (default %d)", api.MaxLimit, api.DefaultLimit))
	}
	return f, filters
}

func (c *clientCommand) parse(command string, args []string, usage io.Writer) error {
	f, filters := c.flagSet(command)
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
	for name, value := range filters {
		allowed = append(allowed, name)
		if f.Changed(name) {
			c.query.Set(name, *value)
		}
	}
	if _, err := api.ParseQuery(c.query.Encode(), allowed, time.Now()); err != nil { // as the daemon will
		return fmt.Errorf("--%w", err)
	}
	if err := checkOutput(c.output); err != nil {
		return err
	}
	scheme, transport, err := clientTransport(c.configFile)
	if err != nil {
		return fileError("--http.config.file", c.configFile, err)
	}
	c.transport = transport
	return c.resolveURL(scheme)
}

// resolveURL derives the URL from the daemon's listen address, unless --url is given.
func (c *clientCommand) resolveURL(scheme string) error {
	if c.baseURL != "" {
		u, err := url.Parse(c.baseURL)
		switch {
		case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
			return fmt.Errorf("--url %q: want http://host:port or https://host:port", c.baseURL)
		case u.User != nil: // the list of processes would show the password
			return errors.New("--url: want no user and password: set both in --http.config.file")
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

// run writes a response or, in a watch on a terminal, repeated responses until ctx is done.
func (c *clientCommand) run(ctx context.Context, stdout io.Writer) error {
	if c.watch && c.terminal {
		return c.watchScreen(ctx, stdout, redrawInterval)
	}
	page, err := c.render(ctx)
	if err == nil {
		_, err = io.WriteString(stdout, page)
	}
	return err
}

func (c *clientCommand) watchScreen(ctx context.Context, stdout io.Writer, interval time.Duration) error {
	before := clearScreen
	for {
		page, err := c.render(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			page = text.Printable(err.Error()) + "\n"
		}
		if _, err := io.WriteString(stdout, before+redraw(page)); err != nil {
			return err
		}
		before = ""
		if retry.Sleep(ctx, interval) != nil {
			return nil
		}
	}
}

// render returns the text of a response.
func (c *clientCommand) render(ctx context.Context) (string, error) {
	body, err := c.fetch(ctx)
	switch {
	case err != nil:
		return "", err
	case c.output == "json" && c.terminal:
		return text.PrintableLines(string(body)), nil
	case c.output == "json":
		return string(body), nil
	}
	lines, rows, err := c.table(body)
	if err != nil {
		return "", fmt.Errorf("%s: not a response of podgauge: %w", c.baseURL, err)
	}
	for i := range lines {
		lines[i] = text.Printable(lines[i]) + "\n"
	}
	return strings.Join(lines, "") + formatTable(rows), nil
}

// fetch returns the body of a response.
func (c *clientCommand) fetch(ctx context.Context) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(c.baseURL+c.path+"?"+c.query.Encode(), "?"), http.NoBody)
	if err != nil {
		return nil, err
	}
	resp, err := c.transport.RoundTrip(req) // without redirects
	if err != nil {
		return nil, fmt.Errorf("no response from %s: %w; set --url to the address of podgauge", c.baseURL, err)
	}
	defer resp.Body.Close() //nolint:errcheck // opened for reading
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxResponseBytes+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("read response of %s: %w", c.baseURL, err)
	case len(body) > maxResponseBytes:
		return nil, fmt.Errorf("%s: response of more than %d bytes", c.baseURL, maxResponseBytes)
	case resp.StatusCode != http.StatusOK:
		var apiErr api.ErrorResponse
		_ = json.Unmarshal(body, &apiErr) // only podgauge has such a body
		status := resp.Status + ": " + strings.Join(strings.Fields(string(body[:min(len(body), maxErrorBytes)])), " ")
		return nil, fmt.Errorf("%s returned %s", c.baseURL, cmp.Or(apiErr.Error, status))
	}
	return body, nil
}

// clientTransport returns the transport of --http.config.file, and the scheme of a default URL.
func clientTransport(file string) (scheme string, transport http.RoundTripper, err error) {
	if file == "" {
		return "http", &http.Transport{DisableKeepAlives: true}, nil // without a proxy
	}
	c, _, err := config.LoadHTTPConfigFile(file)
	if err != nil {
		return "", nil, err
	}
	if transport, err = config.NewRoundTripperFromConfig(*c, "podgauge", config.WithKeepAlivesDisabled()); err != nil {
		return "", nil, err
	}
	scheme = "http"
	if c.TLSConfig != (config.TLSConfig{}) {
		scheme = "https"
	}
	if c.BasicAuth != nil && c.BasicAuth.PasswordFile != "" { // otherwise an error of each request
		_, err = os.ReadFile(c.BasicAuth.PasswordFile)
	}
	return scheme, transport, err
}

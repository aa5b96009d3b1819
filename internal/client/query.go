// Package client has the commands that ask a running podgauge: status, incidents,
// device and driver.
package client

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
	"path/filepath"
	"strings"

	"github.com/podgauge/podgauge/internal/cli"
	"github.com/podgauge/podgauge/internal/text"
	"github.com/podgauge/podgauge/internal/web/api"
	"github.com/prometheus/common/config"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"
)

const (
	maxResponseBytes = 32 << 20
	maxErrorBytes    = 200
)

// MountedFolder has the files of the chart's Secrets.
const MountedFolder = "/etc/podgauge"

// clientCommand is a query of a running podgauge: `podgauge status`.
type clientCommand struct {
	cli.Output
	path  string
	table func(body []byte, wide bool) (lines []string, rows [][]string, err error)
	query url.Values

	filters       map[string]*string
	baseURL       string
	listenAddress string
	stateDir      string
	configFile    string
	configFolder  string // of configFile; empty: any
	transport     http.RoundTripper
}

// NewStatusCommand returns the command status, which reads client configs of a
// folder only; empty: of any folder.
func NewStatusCommand(configFolder string) *cobra.Command {
	q := &clientCommand{path: api.DevicesPath, table: statusTable, configFolder: configFolder}
	return q.command("status", "Show the devices of this node",
		"Show the devices of a running podgauge: health, reason, action, containers and last incident.",
		"  podgauge status -w\n  kubectl exec -n podgauge ds/podgauge -- podgauge status -o wide")
}

// NewIncidentsCommand returns the command incidents, which reads client configs
// of a folder only; empty: of any folder.
func NewIncidentsCommand(configFolder string) *cobra.Command {
	q := &clientCommand{path: api.IncidentsPath, table: incidentsTable, configFolder: configFolder}
	return q.command("incidents", "Show the faults of this node's devices",
		"Show the recorded faults of devices: the affected containers, how the containers ended, and the action that "+
			"recovers the device.",
		"  podgauge incidents --pod llm-0 --since 24h")
}

func (c *clientCommand) command(name, short, long, example string) *cobra.Command {
	command := &cobra.Command{Use: name, Short: short, Long: long, Example: example, Args: cli.MaxArgs(0)}
	c.addFlags(command.Flags())
	cli.CompleteOutput(command)
	command.RunE = func(command *cobra.Command, _ []string) error {
		if err := c.complete(command.Flags(), daemonFlags("/proc")); err != nil {
			return err
		}
		c.Terminal = IsTerminal(command.OutOrStdout())
		return cli.Failed(c.Print(command.Context(), command.OutOrStdout(), c.render))
	}
	return command
}

func statusTable(body []byte, wide bool) ([]string, [][]string, error) {
	var d api.DevicesResponse
	if err := json.Unmarshal(body, &d); err != nil || len(d.Devices) == 0 {
		return cli.NodeSummary(&d), nil, err
	}
	return cli.NodeSummary(&d), cli.DeviceTable(&d, wide), nil
}

func incidentsTable(body []byte, wide bool) ([]string, [][]string, error) {
	var all api.IncidentsResponse
	if err := json.Unmarshal(body, &all); err != nil || len(all.Incidents) == 0 {
		return append(cli.IncidentNotes(&all), "no incidents"), nil, err
	}
	return cli.IncidentNotes(&all), cli.IncidentTable(&all, wide), nil
}

// addFlags declares the flags, and the filters, which have the names of the
// API.
func (c *clientCommand) addFlags(f *pflag.FlagSet) {
	c.AddFlags(f)
	c.AddWatchFlag(f)
	if c.path == api.IncidentsPath {
		c.filters = cli.AddIncidentFilters(f)
	}
	f.StringVar(&c.baseURL, "url", "",
		"`address` of podgauge (default http://127.0.0.1 with the port of --web.listen-address; https://127.0.0.1 if "+
			"--http.config.file has a tls_config). Without this flag and the two below, podgauge is asked at its "+
			"socket, if root can connect")
	f.StringVar(&c.configFile, "http.config.file", "",
		"`file` with password and TLS settings for requests, in promtool's format")
	f.StringVar(&c.listenAddress, "web.listen-address", "",
		"listen `address` of the daemon (default of the daemon in this container, or :9400)")
	addStateDirFlag(f, &c.stateDir)
}

// complete checks the parsed flags, and derives query and URL. daemon is the
// flags of the daemon in this container.
func (c *clientCommand) complete(f *pflag.FlagSet, daemon []string) (err error) {
	if c.query, err = cli.IncidentQuery(f, c.filters); err != nil {
		return err
	}
	if err := c.Check(); err != nil {
		return err
	}
	var scheme string
	if scheme, c.transport, err = clientTransport(c.configFolder, c.configFile); err != nil {
		return text.FileError("--http.config.file", c.configFile, err)
	}
	if c.baseURL == "" && c.listenAddress == "" && c.configFile == "" {
		c.transport = localTransport(cmp.Or(c.stateDir, flagValue(daemon, "state-dir"), defaultStateDir))
	}
	c.listenAddress = cmp.Or(c.listenAddress, flagValue(daemon, "web.listen-address"), ":9400")
	return c.resolveURL(scheme)
}

// resolveURL derives the URL from the daemon's listen address, unless --url is
// given.
func (c *clientCommand) resolveURL(scheme string) error {
	if c.baseURL != "" {
		u, err := url.Parse(c.baseURL)
		switch {
		case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
			return fmt.Errorf("--url %q: expected http://host:port or https://host:port", c.baseURL)
		case u.User != nil: // the list of processes would show the password
			return errors.New("--url: user and password not allowed: set both in --http.config.file")
		}
		c.baseURL = strings.TrimSuffix(c.baseURL, "/")
		return nil
	}
	if err := text.CheckAddress(c.listenAddress); err != nil {
		return fmt.Errorf("--web.listen-address %q: %w", c.listenAddress, err)
	}
	host, port, _ := net.SplitHostPort(c.listenAddress) // checked
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	c.baseURL = scheme + "://" + net.JoinHostPort(host, port)
	return nil
}

// render returns the text of a response.
func (c *clientCommand) render(ctx context.Context) (string, error) {
	body, err := c.fetch(ctx)
	if err != nil {
		return "", err
	}
	page := ""
	if c.IsTable() {
		var lines []string
		var rows [][]string
		lines, rows, err = c.table(body, c.Wide())
		page = c.Table(lines, rows)
	} else {
		page, err = c.Document(body)
	}
	if err != nil {
		return "", fmt.Errorf("%s: not a podgauge response: %w", c.baseURL, err)
	}
	return page, nil
}

// fetch returns the body of a response.
func (c *clientCommand) fetch(ctx context.Context) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	address := strings.TrimSuffix(c.baseURL+c.path+"?"+c.query.Encode(), "?")
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, http.NoBody)
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
		return nil, fmt.Errorf("%s: response larger than %d bytes", c.baseURL, maxResponseBytes)
	case resp.StatusCode != http.StatusOK:
		var apiErr api.ErrorResponse
		_ = json.Unmarshal(body, &apiErr) // only podgauge has such a body
		status := resp.Status + ": " + strings.Join(strings.Fields(string(body[:min(len(body), maxErrorBytes)])), " ")
		return nil, fmt.Errorf("%s returned %s", c.baseURL, cmp.Or(apiErr.Error, status))
	}
	return body, nil
}

// checkBelow returns an error unless a file is a regular file below a folder,
// in which links may lead to the file, as in a Secret. A user with pods/exec
// could otherwise send any file of the container to an address of choice, as a
// password.
func checkBelow(folder, file string) error {
	root, err := os.OpenRoot(folder)
	if err != nil {
		return err
	}
	defer root.Close() //nolint:errcheck // opened for reading
	name, err := filepath.Rel(folder, file)
	if err == nil {
		var info os.FileInfo
		if info, err = root.Stat(name); err == nil && info.Mode().IsRegular() {
			return nil
		}
	}
	return cmp.Or(err, errors.New("not a regular file"))
}

// clientTransport returns the transport of --http.config.file, and the scheme of
// a default URL.
func clientTransport(folder, file string) (scheme string, transport http.RoundTripper, err error) {
	if file == "" {
		return "http", &http.Transport{DisableKeepAlives: true}, nil // without a proxy
	}
	if folder != "" {
		if err := checkBelow(folder, file); err != nil {
			return "", nil, fmt.Errorf("in a pod, expected a file below %s: %w", folder, err)
		}
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

// IsTerminal reports whether w is a terminal.
func IsTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

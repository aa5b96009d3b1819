package app

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"golang.org/x/net/publicsuffix"
)

// accessOptions are the flags that restrict the HTTP server.
type accessOptions struct {
	metricsOnly  bool
	allowedHosts []string // besides addresses and private names
	node         string   // name of the node
}

func (o *accessOptions) addFlags(f *pflag.FlagSet) {
	f.BoolVar(&o.metricsOnly, "web.metrics-only", false, "serve only metrics and probes on the network; the commands on the node still work")
	f.StringSliceVar(&o.allowedHosts, "web.allowed-hosts", nil, "more `names` by which clients reach podgauge, in public domains; addresses, the node's name and names of the cluster are always allowed")
}

func (o *accessOptions) check() error {
	for _, name := range o.allowedHosts {
		if name == "" || strings.ContainsAny(name, "/:* ") {
			return fmt.Errorf("--web.allowed-hosts %q: expected a host name", name)
		}
	}
	return nil
}

// restrict hides all but metrics and probes with --web.metrics-only, and
// rejects foreign hosts: a web page whose own DNS name leads to podgauge (DNS
// rebinding) could read everything. Probes have nothing to read.
func (o *accessOptions) restrict(next http.Handler, metricsPath string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch path := r.URL.Path; {
		case path == "/healthz" || path == "/readyz":
		case !o.allowsHost(r):
			http.Error(w, fmt.Sprintf("host %q: not a name of this node or cluster: add the name to --web.allowed-hosts", r.Host), http.StatusForbidden)
			return
		case o.metricsOnly && path != metricsPath:
			http.NotFound(w, r)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// allowsHost reports whether the Host of a request is an address, the node's
// name, a name of --web.allowed-hosts, or a name that no web page can have,
// because its last label is no public domain: localhost, podgauge.gpus,
// podgauge.gpus.svc.cluster.local. kubectl podgauge sends Sec-Fetch-Site,
// because the API server's proxy keeps the API server's name as Host; scripts
// of a page cannot send this header.
func (o *accessOptions) allowsHost(r *http.Request) bool {
	host, _, err := net.SplitHostPort(r.Host)
	if err != nil { // without a port
		host = strings.Trim(r.Host, "[]")
	}
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	_, err = netip.ParseAddr(host)
	domain, public := publicsuffix.PublicSuffix(host)
	private := !strings.Contains(host, ".") || !public && !strings.Contains(domain, ".")
	return err == nil || private || r.Header.Get("Sec-Fetch-Site") == "none" || strings.EqualFold(host, o.node) ||
		slices.ContainsFunc(o.allowedHosts, func(name string) bool { return strings.EqualFold(name, host) })
}

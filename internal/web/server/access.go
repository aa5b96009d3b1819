package server

import (
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/net/publicsuffix"
)

// allowsHost reports whether the Host of a request is an address, the node's
// name, one of more names, or a name that no web page can have,
// because its last label is no public domain: localhost, podgauge.gpus,
// podgauge.gpus.svc.cluster.local. kubectl podgauge sends Sec-Fetch-Site,
// because the API server's proxy keeps the API server's name as Host; scripts
// of a page cannot send this header.
func allowsHost(r *http.Request, node string, more []string) bool {
	host, _, err := net.SplitHostPort(r.Host)
	if err != nil { // without a port
		host = strings.Trim(r.Host, "[]")
	}
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	_, err = netip.ParseAddr(host)
	domain, public := publicsuffix.PublicSuffix(host)
	private := !strings.Contains(host, ".") || !public && !strings.Contains(domain, ".")
	return err == nil || private || r.Header.Get("Sec-Fetch-Site") == "none" || strings.EqualFold(host, node) ||
		slices.ContainsFunc(more, func(name string) bool { return strings.EqualFold(name, host) })
}

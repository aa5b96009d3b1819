package app

import (
	"bytes"
	"net/http"
	"os"

	"github.com/prometheus/common/config"
)

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
	return scheme, transport, checkCredentialFiles(c)
}

// checkCredentialFiles finds missing files. The error of a request would hide the cause.
func checkCredentialFiles(c *config.HTTPClientConfig) error {
	var files []string
	if c.BasicAuth != nil {
		files = append(files, c.BasicAuth.UsernameFile, c.BasicAuth.PasswordFile)
	}
	if c.Authorization != nil {
		files = append(files, c.Authorization.CredentialsFile)
	}
	for _, file := range files {
		if file == "" {
			continue
		}
		if _, err := os.ReadFile(file); err != nil {
			return err
		}
	}
	return nil
}

// errorHint returns how to correct a rejected request; empty: unknown.
func errorHint(status int, body []byte) string {
	switch {
	case status == http.StatusUnauthorized:
		return "; set a user in --http.config.file"
	case status == http.StatusBadRequest && bytes.HasPrefix(body, []byte("Client sent an HTTP request to an HTTPS server")): // net/http's text
		return "; the server wants TLS: set --url=https://… and a CA in --http.config.file"
	}
	return ""
}

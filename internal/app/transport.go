package app

import (
	"bytes"
	"net/http"
	"os"

	"github.com/prometheus/common/config"
)

// clientTransport makes ready to ask, as the file has it where there is one, and returns the scheme
// of an address that has none.
func clientTransport(file string) (scheme string, transport http.RoundTripper, err error) {
	if file == "" {
		return "http", &http.Transport{DisableKeepAlives: true}, nil // and no proxy
	}
	c, _, err := config.LoadHTTPConfigFile(file)
	if err != nil {
		return "", nil, err
	}
	if transport, err = config.NewRoundTripperFromConfig(*c, "podgauge", config.WithKeepAlivesDisabled()); err != nil {
		return "", nil, err
	}
	if err := checkCredentialFiles(c); err != nil {
		return "", nil, err
	}
	if c.TLSConfig != (config.TLSConfig{}) {
		return "https", transport, nil
	}
	return "http", transport, nil
}

// checkCredentialFiles finds files that are missing before somebody is asked: what is wrong with them
// would look like what is wrong with the answer.
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

// errorHint is what to do about an answer that is a refusal.
func errorHint(status int, body []byte) string {
	switch {
	case status == http.StatusUnauthorized:
		return "; --http.config.file says who asks"
	case status == http.StatusBadRequest && bytes.HasPrefix(body, []byte("Client sent an HTTP request to an HTTPS server")): // net/http's words
		return "; it wants TLS: --url=https://…, and --http.config.file says whom to trust"
	}
	return ""
}

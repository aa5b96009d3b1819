package node

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
)

// GetJSON decodes a response with status 200 into v, unless v is nil.
func GetJSON(ctx context.Context, url string, v any) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	request.Close = true // the next node has the same address, and would reset the connection
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		reason, _ := io.ReadAll(io.LimitReader(response.Body, 1<<10))
		return fmt.Errorf("GET %s: %s: %s", url, response.Status, reason)
	}
	if v == nil {
		return nil
	}
	if err := json.NewDecoder(response.Body).Decode(v); err != nil {
		return fmt.Errorf("decode %s: %w", url, err)
	}
	return nil
}

func dial(ctx context.Context, network, address string) error {
	conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
	if err == nil {
		conn.Close()
	}
	return err
}

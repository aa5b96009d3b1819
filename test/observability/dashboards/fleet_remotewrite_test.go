package dashboards

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"net/http"

	"google.golang.org/protobuf/encoding/protowire"
)

// writeRequest is a request of Prometheus' remote-write protocol 1.0
// (https://prometheus.io/docs/specs/prw/remote_write_spec/).
type writeRequest struct {
	seriesCount, sampleCount int

	body    []byte // finished series
	series  []byte // the current series
	pending int    // samples of the current series
}

// Field numbers of WriteRequest, TimeSeries, Label and Sample.
const (
	requestSeries   = 1
	seriesLabels    = 1
	seriesSamples   = 2
	labelName       = 1
	labelValue      = 2
	sampleValue     = 1
	sampleTimestamp = 2
)

// add adds a series with samples; labels are alternating names and values, sorted by name.
func (r *writeRequest) add(labels []string, times []int64, values []float64) {
	var all []label
	for i := 0; i+1 < len(labels); i += 2 {
		all = append(all, label{labels[i], labels[i+1]})
	}
	r.begin(all)
	for i := range times {
		r.sample(times[i], values[i])
	}
}

func (r *writeRequest) begin(labels []label) {
	r.finish()
	for _, l := range labels {
		size := protowire.SizeTag(labelName) + protowire.SizeBytes(len(l.name)) + protowire.SizeTag(labelValue) + protowire.SizeBytes(len(l.value))
		r.series = protowire.AppendTag(r.series, seriesLabels, protowire.BytesType)
		r.series = protowire.AppendVarint(r.series, uint64(size))
		r.series = protowire.AppendTag(r.series, labelName, protowire.BytesType)
		r.series = protowire.AppendString(r.series, l.name)
		r.series = protowire.AppendTag(r.series, labelValue, protowire.BytesType)
		r.series = protowire.AppendString(r.series, l.value)
	}
}

func (r *writeRequest) sample(milliseconds int64, value float64) {
	size := protowire.SizeTag(sampleValue) + protowire.SizeFixed64() + protowire.SizeTag(sampleTimestamp) + protowire.SizeVarint(uint64(milliseconds))
	r.series = protowire.AppendTag(r.series, seriesSamples, protowire.BytesType)
	r.series = protowire.AppendVarint(r.series, uint64(size))
	r.series = protowire.AppendTag(r.series, sampleValue, protowire.Fixed64Type)
	r.series = protowire.AppendFixed64(r.series, math.Float64bits(value))
	r.series = protowire.AppendTag(r.series, sampleTimestamp, protowire.VarintType)
	r.series = protowire.AppendVarint(r.series, uint64(milliseconds))
	r.pending++
}

// finish adds the current series, if it has samples.
func (r *writeRequest) finish() {
	if r.pending > 0 {
		r.body = protowire.AppendTag(r.body, requestSeries, protowire.BytesType)
		r.body = protowire.AppendBytes(r.body, r.series)
		r.seriesCount++
		r.sampleCount += r.pending
	}
	r.series, r.pending = r.series[:0], 0
}

// reset empties the request.
func (r *writeRequest) reset() {
	r.body, r.series, r.pending, r.seriesCount, r.sampleCount = r.body[:0], r.series[:0], 0, 0, 0
}

// send sends the request to remote-write addresses.
func (r *writeRequest) send(ctx context.Context, urls ...string) error {
	r.finish()
	if r.seriesCount == 0 {
		return nil
	}
	body := snappyLiterals(r.body)
	for _, url := range urls {
		request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
		if err != nil {
			return err
		}
		request.Header.Set("Content-Type", "application/x-protobuf")
		request.Header.Set("Content-Encoding", "snappy")
		request.Header.Set("X-Prometheus-Remote-Write-Version", "0.1.0")
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			return err
		}
		text, _ := io.ReadAll(io.LimitReader(response.Body, 1000)) //nolint:errcheck // only for the message
		response.Body.Close()
		if response.StatusCode/100 != 2 {
			return fmt.Errorf("write to %s: %s: %s", url, response.Status, text)
		}
	}
	return nil
}

// snappyLiterals returns data in snappy's format, which the protocol requires, without compression.
func snappyLiterals(data []byte) []byte {
	const maxLiteral = 1 << 16 // bytes
	out := binary.AppendUvarint(make([]byte, 0, len(data)+len(data)/maxLiteral*3+16), uint64(len(data)))
	for len(data) > 0 {
		n := min(len(data), maxLiteral)
		out = append(out, 61<<2, byte(n-1), byte((n-1)>>8)) // a literal with a length of two bytes
		out = append(out, data[:n]...)
		data = data[n:]
	}
	return out
}

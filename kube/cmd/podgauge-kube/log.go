package main

import (
	"fmt"
	"io"
	"log/slog"

	"github.com/spf13/pflag"
	"k8s.io/klog/v2"
)

// logOptions are the flags of log messages.
type logOptions struct{ level, format string }

func (o *logOptions) addFlags(f *pflag.FlagSet) {
	f.StringVar(&o.level, "log.level", "info",
		"only log messages of this `level` and above: debug, info, warn or error")
	f.StringVar(&o.format, "log.format", "logfmt", "`format` of log messages: logfmt or json")
}

// logger returns a logger, which client-go uses as well.
func (o *logOptions) logger(w io.Writer) (*slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(o.level)); err != nil {
		return nil, fmt.Errorf("--log.level %q: expected debug, info, warn or error", o.level)
	}
	options := &slog.HandlerOptions{Level: level}
	var log *slog.Logger
	switch o.format {
	case "logfmt":
		log = slog.New(slog.NewTextHandler(w, options))
	case "json":
		log = slog.New(slog.NewJSONHandler(w, options))
	default:
		return nil, fmt.Errorf("--log.format %q: expected logfmt or json", o.format)
	}
	klog.SetSlogLogger(log)
	return log, nil
}

package cli

import (
	"fmt"
	"io"
	"log/slog"

	"github.com/spf13/pflag"
)

// LogOptions are the flags of log messages.
type LogOptions struct{ level, format string }

// AddFlags declares --log.level and --log.format.
func (o *LogOptions) AddFlags(f *pflag.FlagSet) {
	f.StringVar(&o.level, "log.level", "info",
		"only log messages of this `level` and above: debug, info, warn or error")
	f.StringVar(&o.format, "log.format", "logfmt", "`format` of log messages: logfmt or json")
}

// Check checks the flags.
func (o *LogOptions) Check() error {
	if err := new(slog.Level).UnmarshalText([]byte(o.level)); err != nil {
		return fmt.Errorf("--log.level %q: expected debug, info, warn or error", o.level)
	}
	if o.format != "logfmt" && o.format != "json" {
		return fmt.Errorf("--log.format %q: expected logfmt or json", o.format)
	}
	return nil
}

// Logger returns a logger with the level and format of the flags.
func (o *LogOptions) Logger(w io.Writer) *slog.Logger {
	var level slog.Level
	_ = level.UnmarshalText([]byte(o.level)) // Check has accepted the level
	options := &slog.HandlerOptions{Level: level}
	if o.format == "json" {
		return slog.New(slog.NewJSONHandler(w, options))
	}
	return slog.New(slog.NewTextHandler(w, options))
}

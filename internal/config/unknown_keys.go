package config

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"github.com/podgauge/podgauge/internal/text"
)

// UnknownKey is an unknown key of the file. The key has no effect, because the file may be written for a newer version of podgauge
// or of NVIDIA's plugin.
type UnknownKey struct {
	File string
	Line int
	Key  string // with the path: "flags.migStrategie"
	Hint string // the valid keys
}

func newUnknownKey(file string, line int, path string, valid []string) UnknownKey {
	return UnknownKey{file, line, text.OfName(path), "valid keys are " + strings.Join(slices.Sorted(slices.Values(valid)), ", ")}
}

func (k UnknownKey) String() string {
	return fmt.Sprintf("%s:%d: %s: unknown key; %s", k.File, k.Line, k.Key, k.Hint)
}

// Report logs the notices and unknown keys of an accepted file.
func (l Loaded) Report(log *slog.Logger) {
	for _, notice := range l.Notices {
		log.Info("config notice", "notice", notice)
	}
	for _, k := range l.UnknownKeys {
		log.Warn("unknown config key ignored", "key", k.Key, "file", k.File, "line", k.Line, "hint", k.Hint)
	}
}

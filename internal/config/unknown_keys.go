package config

import (
	"fmt"
	"log/slog"
	"strings"
)

// maxLoggedKeys limits the log lines of a file. UnknownKeys has all unknown keys.
const maxLoggedKeys = 20

// UnknownKey is an unknown key of the file. The key has no effect, because the file may be written for a newer version of podgauge
// or of NVIDIA's plugin.
type UnknownKey struct {
	File string
	Line int
	Key  string // with the path: "flags.migStrategie"
	Hint string // the most similar key, or the valid keys
}

func (k UnknownKey) String() string {
	return fmt.Sprintf("%s:%d: %s: unknown key; %s", k.File, k.Line, k.Key, k.Hint)
}

// Report logs the notices and unknown keys of an accepted file.
func (l Loaded) Report(log *slog.Logger) {
	for _, notice := range l.Notices {
		log.Info("config notice", "notice", notice)
	}
	for i, k := range l.UnknownKeys {
		if i == maxLoggedKeys {
			log.Warn("more unknown configuration keys ignored", "keys", len(l.UnknownKeys)-i)
			return
		}
		log.Warn("unknown configuration key ignored", "key", k.Key, "file", k.File, "line", k.Line, "hint", k.Hint)
	}
}

// suggestKey returns the most similar known key, or all known keys. NVIDIA's parser ignores case.
func suggestKey(key string, known []string) string {
	for _, k := range known {
		if strings.EqualFold(k, key) || isOneEdit(k, key) || isOneEdit(key, k) {
			return "is " + k + " meant?"
		}
	}
	return "valid keys are " + strings.Join(known, ", ")
}

// isOneEdit reports whether b is a with a single letter omitted or replaced.
func isOneEdit(a, b string) bool {
	i := 0
	for i < len(a) && i < len(b) && a[i] == b[i] {
		i++
	}
	return i < len(a) && (a[i+1:] == b[i:] || i < len(b) && a[i+1:] == b[i+1:])
}

package config

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"

	"github.com/podgauge/podgauge/internal/text"
	"github.com/spf13/pflag"
)

// EnvAnnotation is the pflag annotation with a flag's environment variables.
const EnvAnnotation = "env"

// Builder makes Settings of flags, environment and file, in this order of
// precedence. A flag or variable also beats a later file.
type Builder struct {
	lookupEnv func(string) (string, bool)
	flags     map[string][]string // values of the given flags
}

// NewBuilder returns a Builder without flags. lookupEnv is os.LookupEnv, or a
// test's environment.
func NewBuilder(lookupEnv func(string) (string, bool)) *Builder {
	return &Builder{lookupEnv: lookupEnv, flags: map[string][]string{}}
}

// AddFlags declares the flags of all settings, with NVIDIA's aliases. Parsing f
// sets the flags. Repeated lists grow.
func (b *Builder) AddFlags(f *pflag.FlagSet) {
	canonical := map[string]string{}
	for _, s := range settingsOf(new(Settings), new(FileLocation)) {
		if s.flag == "" {
			continue
		}
		add := f.Func
		if s.isBool {
			add = f.BoolFunc
		}
		add(s.flag, s.help, func(text string) error {
			values := []string{text}
			if s.isList {
				values = append(slices.Clone(b.flags[s.flag]), splitList(text)...)
			}
			err := s.set(values)
			if err == nil {
				b.flags[s.flag] = values
			}
			return err
		})
		f.Lookup(s.flag).DefValue = s.defaultValue
		f.Lookup(s.flag).Annotations = map[string][]string{EnvAnnotation: s.env}
		for _, alias := range s.aliases {
			canonical[alias] = s.flag
		}
	}
	previous := f.GetNormalizeFunc()
	f.SetNormalizeFunc(func(f *pflag.FlagSet, name string) pflag.NormalizedName {
		return previous(f, cmp.Or(canonical[name], name))
	})
}

// lookup returns the values of the flag or variable, and its name; without a
// name, neither is set.
func (b *Builder) lookup(s *setting, d *document) (values []string, origin string) {
	if values, given := b.flags[s.flag]; given {
		return values, "--" + s.flag
	}
	for _, name := range s.env {
		text, ok := b.lookupEnv(name)
		if !ok || text == "" && name != "KUBELET_SOCKET" { // charts write empty variables for missing values
			continue
		}
		if !s.isList {
			return []string{text}, name
		}
		var skipped []string
		for _, v := range splitList(text) {
			if strings.HasPrefix(name, "DP_") && s.set([]string{v}) != nil { // as by NVIDIA's plugin
				skipped = append(skipped, v)
			} else {
				values = append(values, v)
			}
		}
		if len(skipped) > 0 {
			d.notices = append(d.notices, fmt.Sprintf("%s: skipped %q: not Xids", name, skipped))
		}
		return values, name
	}
	return nil, ""
}

// Loaded is the result of a load.
type Loaded struct {
	Settings Settings
	Config   string            // name of the chosen config; empty: the configs have no names
	Notices  []string          // a line each: ignored keys, and keys with more effect than in NVIDIA's plugin
	Origins  map[string]string // by flag, or path in the file: a flag, a variable, or file:line; a default has no entry
	// UnknownKeys are ignored, in the order of their lines.
	UnknownKeys []UnknownKey

	location FileLocation
	raw      rawConfig
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

// Load reads the file named by flags or environment, if any, and makes Settings
// of flags, environment and file.
func (b *Builder) Load() (Loaded, error) {
	location, err := b.Location()
	if err != nil {
		return Loaded{}, err
	}
	if location.File == "" && (location.Name != "" || location.NameFile != "") {
		return Loaded{}, errors.New("--config-name and --config-name-file require --config-file")
	}
	return b.LoadFrom(location)
}

// LoadFrom is Load with the location of the file.
func (b *Builder) LoadFrom(location FileLocation) (Loaded, error) {
	c, err := location.read()
	if err != nil {
		return Loaded{}, fmt.Errorf("read config: %w", err)
	}
	l, err := b.load(c)
	l.location = location
	return l, err
}

// Location returns the location of the file, by flags and environment.
func (b *Builder) Location() (FileLocation, error) {
	var location FileLocation
	for _, s := range settingsOf(new(Settings), &location) {
		if s.path == "" { // the location is in no file
			if _, err := b.apply(&s, &document{}); err != nil {
				return FileLocation{}, err
			}
		}
	}
	return location, nil
}

func (b *Builder) load(c rawConfig) (Loaded, error) {
	d, err := c.parse()
	if err != nil {
		return Loaded{}, err
	}
	l := Loaded{Config: d.name, Origins: map[string]string{}, raw: c}
	l.Settings.Sharing.MPS.FailRequestsGreaterThanOne = true // the default of NVIDIA's plugin
	for _, s := range settingsOf(&l.Settings, &l.location) {
		origin, err := b.apply(&s, d)
		if err != nil {
			return Loaded{}, err
		}
		if origin != "" {
			l.Origins[s.name()] = origin
		}
	}
	if err := l.Settings.finalize(d, l.Origins); err != nil {
		return Loaded{}, err
	}
	slices.SortStableFunc(d.unknown, func(a, b UnknownKey) int { return a.Line - b.Line })
	l.Notices, l.UnknownKeys = d.notices, d.unknown
	return l, nil
}

// apply sets one row from the first origin that has a value, and returns the
// origin. Only apply knows the precedence.
func (b *Builder) apply(s *setting, d *document) (origin string, err error) {
	if values, origin := b.lookup(s, d); origin != "" {
		if err := s.set(values); err != nil {
			return "", fmt.Errorf("%s: %w", origin, err)
		}
		return origin, nil
	}
	if e, ok := d.values[s.path]; ok {
		return fmt.Sprintf("%s:%d", d.file, e.line), d.errorAt(s.read(e.value), e.line, s.path)
	}
	if s.defaultValue != "" {
		err = s.set([]string{s.defaultValue})
	}
	return "", err
}

// finalize sets defaults that depend on several settings, and rejects
// combinations.
func (s *Settings) finalize(d *document, origins map[string]string) error {
	if s.DevRoot == "" {
		s.DevRoot = s.DriverRoot
	}
	if len(s.Sharing.MPS.Resources) == 0 {
		s.Sharing.MPS = SharingMethod{}
		return nil
	}
	if len(s.Sharing.TimeSlicing.Resources) > 0 {
		d.notices = append(d.notices, origins["sharing.timeSlicing"]+": sharing.timeSlicing: "+
			"ignored because of sharing.mps, as by NVIDIA's plugin")
		s.Sharing.TimeSlicing = SharingMethod{}
	}
	switch {
	case s.MIGStrategy == MIGMixed:
		return fmt.Errorf("%s: sharing.mps: incompatible with MIG strategy mixed (%s): MPS shares whole GPUs only",
			origins["sharing.mps"], origins["mig-strategy"])
	case s.MPSRoot == "":
		return fmt.Errorf("%s: sharing.mps: requires --mps-root (MPS_ROOT, flags.mpsRoot), "+
			"the folder of a running MPS control daemon", origins["sharing.mps"])
	}
	return nil
}

// GivenSetting is a setting of a flag, a variable or the file, in words.
type GivenSetting struct{ Name, Value, Origin string }

// Summary returns the settings that are not defaults.
func (l Loaded) Summary() (given []GivenSetting) {
	for _, s := range settingsOf(&l.Settings, &l.location) {
		if origin := l.Origins[s.name()]; origin != "" {
			given = append(given, GivenSetting{s.name(), cmp.Or(s.text(), "none"), origin})
		}
	}
	return given
}

func (s SharingMethod) String() string { return joinAll(s.Resources) }

func (p XidPolicies) String() string {
	var words []string
	for _, xid := range slices.Sorted(maps.Keys(p)) {
		word := fmt.Sprintf("%d %s", xid, policyNames[p[xid].Policy])
		if p[xid].Count > 0 {
			word += fmt.Sprintf(" at %d in %s", p[xid].Count, text.Duration(p[xid].Window))
		}
		words = append(words, word)
	}
	return joinAll(words)
}

func (r SharedResource) String() string {
	devices := "each device"
	switch {
	case len(r.Devices.List) > 0:
		devices = "each of " + joinAll(r.Devices.List)
	case r.Devices.Count > 0:
		devices = fmt.Sprintf("each of the first %d", r.Devices.Count)
	}
	return fmt.Sprintf("%s: %d replicas of %s as %s", r.Name, r.Replicas, devices, cmp.Or(r.Rename, r.Name))
}

func (p namePatterns) String() string { return joinAll(p) }

func (p NamePattern) String() string { return p.Pattern + " as " + p.Name }

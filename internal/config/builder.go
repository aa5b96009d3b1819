package config

import (
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/pflag"
)

// EnvAnnotation is the pflag annotation with a flag's environment variables.
const EnvAnnotation = "env"

// Builder makes Settings of flags, environment and file, in this order of precedence. A flag or variable also beats a later file.
type Builder struct {
	lookupEnv func(string) (string, bool)
	flags     map[string][]string // values of the given flags
}

// NewBuilder returns a Builder without flags. lookupEnv is os.LookupEnv, or a test's environment.
func NewBuilder(lookupEnv func(string) (string, bool)) *Builder {
	return &Builder{lookupEnv: lookupEnv, flags: map[string][]string{}}
}

// AddFlags declares the flags of all settings, with NVIDIA's aliases. Parsing f sets the flags. Repeated lists grow.
func (b *Builder) AddFlags(f *pflag.FlagSet) {
	canonical := map[string]string{}
	for i := range allSettings {
		s := &allSettings[i]
		if s.flag == "" {
			continue
		}
		set := func(text string) error {
			values := []string{text}
			if isList(s.field(new(loadState))) {
				values = append(slices.Clone(b.flags[s.flag]), splitList(text)...)
			}
			if err := s.set(new(loadState), values); err != nil {
				return err
			}
			b.flags[s.flag] = values
			return nil
		}
		if isBool(s.field(new(loadState))) {
			f.BoolFunc(s.flag, s.help, set)
		} else {
			f.Func(s.flag, s.help, set)
		}
		f.Lookup(s.flag).DefValue = s.defaultValue
		f.Lookup(s.flag).Annotations = map[string][]string{EnvAnnotation: s.env}
		for _, alias := range s.aliases {
			canonical[alias] = s.flag
		}
	}
	previous := f.GetNormalizeFunc()
	f.SetNormalizeFunc(func(f *pflag.FlagSet, name string) pflag.NormalizedName {
		if known, ok := canonical[name]; ok {
			name = known
		}
		return previous(f, name)
	})
}

// lookup returns the values of the flag or variable, and its name; without a name, neither is set.
func (b *Builder) lookup(s *setting, d *document) (values []string, origin string) {
	if values, given := b.flags[s.flag]; given {
		return values, "--" + s.flag
	}
	for _, name := range s.env {
		text, ok := b.lookupEnv(name)
		if !ok || text == "" && !s.allowEmpty {
			continue
		}
		values = []string{text}
		if isList(s.field(new(loadState))) {
			values = splitList(text)
		}
		if s.lenient {
			valid := slices.DeleteFunc(slices.Clone(values), func(v string) bool { return s.check(v) != nil })
			if skipped := slices.DeleteFunc(values, func(v string) bool { return slices.Contains(valid, v) }); len(skipped) > 0 {
				d.notices = append(d.notices, fmt.Sprintf("%s: skipped %q: not Xids", name, skipped))
			}
			values = valid
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

// Load reads the file named by flags or environment, if any, and makes Settings of flags, environment and file.
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
	var t loadState
	for i := range allSettings {
		if allSettings[i].path == "" { // the location is in no file
			if _, err := b.apply(&allSettings[i], &t, &document{}); err != nil {
				return FileLocation{}, err
			}
		}
	}
	return t.location, nil
}

func (b *Builder) load(c rawConfig) (Loaded, error) {
	d, err := c.parse()
	if err != nil {
		return Loaded{}, err
	}
	t := loadState{}
	t.Sharing.MPS.FailRequestsGreaterThanOne = true // the default of NVIDIA's plugin
	l := Loaded{Config: d.name, Origins: map[string]string{}, raw: c}
	for i := range allSettings {
		origin, err := b.apply(&allSettings[i], &t, d)
		if err != nil {
			return Loaded{}, err
		}
		if origin != "" {
			l.Origins[allSettings[i].name()] = origin
		}
	}
	if err := t.finalize(d, l.Origins); err != nil {
		return Loaded{}, err
	}
	slices.SortStableFunc(d.unknown, func(a, b UnknownKey) int { return a.Line - b.Line })
	l.Settings, l.Notices, l.UnknownKeys = t.Settings, d.notices, d.unknown
	return l, nil
}

// apply sets one row from the first origin that has a value, and returns the origin. Only apply knows the precedence.
func (b *Builder) apply(s *setting, t *loadState, d *document) (origin string, err error) {
	if values, origin := b.lookup(s, d); origin != "" {
		if err := s.set(t, values); err != nil {
			return "", fmt.Errorf("%s: %w", origin, err)
		}
		return origin, nil
	}
	if e, ok := d.values[s.path]; ok {
		return fmt.Sprintf("%s:%d", d.file, e.line), d.errorAt(s.read(t, e.value), e.line, s.path)
	}
	if s.defaultValue != "" {
		err = s.set(t, []string{s.defaultValue})
	}
	return "", err
}

// finalize sets defaults that depend on several settings, and rejects combinations.
func (t *loadState) finalize(d *document, origins map[string]string) error {
	if t.DevRoot == "" {
		t.DevRoot = t.DriverRoot
	}
	if len(t.Sharing.MPS.Resources) == 0 {
		t.Sharing.MPS = SharingMethod{}
		return nil
	}
	if len(t.Sharing.TimeSlicing.Resources) > 0 {
		d.notices = append(d.notices, origins["sharing.timeSlicing"]+": sharing.timeSlicing: ignored because of sharing.mps, as by NVIDIA's plugin")
		t.Sharing.TimeSlicing = SharingMethod{}
	}
	switch {
	case t.MIGStrategy == MIGMixed:
		return fmt.Errorf("%s: sharing.mps: incompatible with MIG strategy mixed (%s): MPS shares whole GPUs only", origins["sharing.mps"], origins["mig-strategy"])
	case t.MPSRoot == "":
		return fmt.Errorf("%s: sharing.mps: requires --mps-root (MPS_ROOT, flags.mpsRoot), the folder of a running MPS control daemon", origins["sharing.mps"])
	}
	return nil
}

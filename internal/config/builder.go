package config

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/pflag"
)

// Builder makes Settings of flags, environment and file, in this order of
// precedence. A flag or variable that was given also beats a file that changes
// later.
type Builder struct {
	lookupEnv func(string) (string, bool)
	flags     map[string]*flagValue // by name, all that were declared
}

// NewBuilder makes one that knows the environment, through os.LookupEnv or the
// like, and no flags yet.
func NewBuilder(lookupEnv func(string) (string, bool)) *Builder {
	return &Builder{lookupEnv: lookupEnv, flags: map[string]*flagValue{}}
}

// AddFlags declares every setting that is a flag, also under the other names
// that NVIDIA's plugin has for it. They are read when f is parsed.
func (b *Builder) AddFlags(f *pflag.FlagSet) {
	canonical := map[string]string{}
	for i := range allSettings {
		s := &allSettings[i]
		if s.flag == "" {
			continue
		}
		b.flags[s.flag] = &flagValue{setting: s}
		f.Var(b.flags[s.flag], s.flag, s.help)
		if isBool(s.field(new(loadState))) {
			f.Lookup(s.flag).NoOptDefVal = "true"
		}
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

// flagValue is a pflag.Value that remembers whether it was given.
type flagValue struct {
	setting *setting
	set     bool
	values  []string
}

// Set is called once for each time that the flag is given. Lists grow.
func (v *flagValue) Set(s string) error {
	values := []string{s}
	if isList(v.setting.field(new(loadState))) {
		values = append(slices.Clone(v.values), splitList(s)...)
	}
	if err := v.setting.set(new(loadState), values); err != nil {
		return err
	}
	v.set, v.values = true, values
	return nil
}

func (v *flagValue) String() string {
	switch {
	case v.setting == nil: // pflag compares with a zero value
		return ""
	case v.set:
		return strings.Join(v.values, ",")
	}
	return v.setting.defaultValue
}

// Type is what --help shows of a flag whose help names no value.
func (v *flagValue) Type() string {
	if isBool(v.setting.field(new(loadState))) {
		return "bool"
	}
	return "string"
}

// IsSet tells whether a setting was given as a flag or variable, and so does not
// follow the file.
func (b *Builder) IsSet(name string) bool {
	for i := range allSettings {
		if allSettings[i].flag == name {
			_, _, _, given := b.flagOrEnv(&allSettings[i])
			return given
		}
	}
	return false
}

// flagOrEnv is what was given of a row without a file: its values, by what, and
// what had to be skipped.
func (b *Builder) flagOrEnv(s *setting) (values []string, origin string, skipped []string, given bool) {
	if f := b.flags[s.flag]; f != nil && f.set {
		return f.values, "--" + s.flag, nil, true
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
			skipped = slices.DeleteFunc(values, func(v string) bool { return s.check(v) == nil })
			values = valid
		}
		return values, name, skipped, true
	}
	return nil, "", nil, false
}

// set reads the values that one origin has for the row.
func (s *setting) set(t *loadState, values []string) error {
	dst := s.field(t)
	if len(s.allowed) > 0 && len(values) == 0 {
		return fmt.Errorf("want at least one of %s", strings.Join(s.allowed, ", "))
	}
	unique := make([]string, 0, len(values))
	for _, v := range values {
		if len(s.allowed) > 0 && !slices.Contains(s.allowed, v) {
			return fmt.Errorf("%q: want %s", v, joinOr(s.allowed))
		}
		if s.check != nil {
			if err := s.check(v); err != nil {
				return err
			}
		}
		if !slices.Contains(unique, v) {
			unique = append(unique, v)
		}
	}
	return assignValues(dst, unique)
}

// Loaded is what was made of all that was given.
type Loaded struct {
	Settings Settings
	Config   string            // the name of the config that was chosen; empty where there are none
	Notices  []string          // a line each: what is ignored, or means more than it does to NVIDIA's plugin
	Origins  map[string]string // by flag, or path in the file: a flag, a variable, or file:line; none for a default
	// UnknownKeys are ignored, in the order of their lines.
	UnknownKeys []UnknownKey

	digest digest // of what was read
}

// Load reads the file that flags or environment name, if any, and makes Settings
// of all three.
func (b *Builder) Load() (Loaded, error) {
	location, err := b.Location()
	if err != nil {
		return Loaded{}, err
	}
	if location.File == "" && (location.Name != "" || location.NameFile != "") {
		return Loaded{}, errors.New("want --config-file, for --config-name and --config-name-file choose from what it names")
	}
	return b.LoadFrom(location)
}

// LoadFrom is Load with the file named.
func (b *Builder) LoadFrom(location FileLocation) (Loaded, error) {
	c, err := location.read()
	if err != nil {
		return Loaded{}, fmt.Errorf("read config: %w", err)
	}
	return b.load(c)
}

// Location is where flags and environment say that the file is.
func (b *Builder) Location() (FileLocation, error) {
	var t loadState
	for i := range allSettings {
		if s := &allSettings[i]; s.read == nil && s.path == "" {
			if _, _, err := b.apply(s, &t, nil); err != nil {
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
	l := Loaded{Config: d.name, Origins: map[string]string{}, digest: c.digest()}
	for i := range allSettings {
		origin, skipped, err := b.apply(&allSettings[i], &t, d)
		if err != nil {
			return Loaded{}, err
		}
		if origin != "" {
			l.Origins[allSettings[i].name()] = origin
		}
		if len(skipped) > 0 {
			d.notices = append(d.notices, fmt.Sprintf("%s: skipped %q, which are no Xids", origin, skipped))
		}
	}
	if err := t.finalize(d, l.Origins); err != nil {
		return Loaded{}, err
	}
	slices.SortStableFunc(d.unknown, func(a, b UnknownKey) int { return cmp.Compare(a.Line, b.Line) })
	l.Settings, l.Notices, l.UnknownKeys = t.Settings, d.notices, d.unknown
	return l, nil
}

// name is what a setting is called when no file is spoken of.
func (s *setting) name() string {
	if s.flag != "" {
		return s.flag
	}
	return s.path
}

// apply sets one row from the first origin that has it. This is the one place
// that knows the precedence.
func (b *Builder) apply(s *setting, t *loadState, d *configDocument) (origin string, skipped []string, err error) {
	if s.flag != "" {
		values, origin, skipped, given := b.flagOrEnv(s)
		if given {
			if err := s.set(t, values); err != nil {
				return "", nil, fmt.Errorf("%s: %w", origin, err)
			}
			return origin, skipped, nil
		}
	}
	if d != nil && d.values[s.path] != nil {
		n := d.values[s.path]
		return fmt.Sprintf("%s:%d", d.file, n.line), nil, d.withLocation(withPath(d.prefix+s.path, n, s.readFrom(d, t, n)))
	}
	if s.defaultValue == "" {
		return "", nil, nil
	}
	return "", nil, s.set(t, []string{s.defaultValue})
}

// readFrom sets a row from a file.
func (s *setting) readFrom(d *configDocument, t *loadState, n *node) error {
	if s.read != nil {
		return s.read(d, t, n, d.prefix+s.path)
	}
	values, err := n.values(s.field(t))
	if err != nil {
		return err
	}
	return s.set(t, values)
}

// finalize settles what follows from several settings together.
func (t *loadState) finalize(d *configDocument, origins map[string]string) error {
	if t.DevRoot == "" {
		t.DevRoot = t.DriverRoot
	}
	t.Health = newHealthConfig(t.ignoredXids, t.enabledXids, t.xidPolicies)
	mps, timeSlicing := &t.Sharing.MPS, &t.Sharing.TimeSlicing
	if len(mps.Resources) > 0 && len(timeSlicing.Resources) > 0 {
		d.notices = append(d.notices, fmt.Sprintf("%s: sharing.timeSlicing is ignored, since there is sharing.mps; NVIDIA's plugin does so too", origins["sharing.timeSlicing"]))
		*timeSlicing = SharingMethod{}
	}
	if len(mps.Resources) > 0 && t.MIGStrategy == MIGMixed {
		return fmt.Errorf("%s: sharing.mps: not with MIG strategy mixed (%s); MPS shares whole GPUs only", origins["sharing.mps"], origins["mig-strategy"])
	}
	if len(mps.Resources) > 0 && t.MPSRoot == "" {
		return fmt.Errorf("%s: sharing.mps: wants --mps-root (MPS_ROOT, flags.mpsRoot), the folder of a running MPS control daemon", origins["sharing.mps"])
	}
	return nil
}

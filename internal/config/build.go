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
	flags     map[string]*given // by name, all that were declared
}

// NewBuilder makes one that knows the environment, through os.LookupEnv or the
// like, and no flags yet.
func NewBuilder(lookupEnv func(string) (string, bool)) *Builder {
	return &Builder{lookupEnv: lookupEnv, flags: map[string]*given{}}
}

// AddFlags declares every setting that is a flag, also under the other names
// that NVIDIA's plugin has for it. They are read when f is parsed.
func (b *Builder) AddFlags(f *pflag.FlagSet) {
	names := map[string]string{}
	for i := range rows {
		r := &rows[i]
		if r.flag == "" {
			continue
		}
		b.flags[r.flag] = &given{row: r}
		f.Var(b.flags[r.flag], r.flag, r.help)
		if isSwitch(r.into(new(target))) {
			f.Lookup(r.flag).NoOptDefVal = "true"
		}
		for _, alias := range r.aliases {
			names[alias] = r.flag
		}
	}
	before := f.GetNormalizeFunc()
	f.SetNormalizeFunc(func(f *pflag.FlagSet, name string) pflag.NormalizedName {
		if known, ok := names[name]; ok {
			name = known
		}
		return before(f, name)
	})
}

// given is a pflag.Value that remembers whether it was given.
type given struct {
	row    *row
	given  bool
	values []string
}

// Set is called once for each time that the flag is given. Lists grow.
func (f *given) Set(s string) error {
	values := []string{s}
	if isList(f.row.into(new(target))) {
		values = append(slices.Clone(f.values), split(s)...)
	}
	if err := f.row.set(new(target), values); err != nil {
		return err
	}
	f.given, f.values = true, values
	return nil
}

func (f *given) String() string {
	switch {
	case f.row == nil: // pflag compares with a zero value
		return ""
	case f.given:
		return strings.Join(f.values, ",")
	}
	return f.row.byDef
}

// Type is what --help shows of a flag whose help names no value.
func (f *given) Type() string {
	if isSwitch(f.row.into(new(target))) {
		return "bool"
	}
	return "string"
}

// Given tells whether a setting was given as a flag or variable, and so does not
// follow the file.
func (b *Builder) Given(name string) bool {
	for i := range rows {
		if rows[i].flag == name {
			_, _, _, given := b.outside(&rows[i])
			return given
		}
	}
	return false
}

// outside is what was given of a row without a file: its values, by what, and
// what had to be skipped.
func (b *Builder) outside(r *row) (values []string, origin string, skipped []string, given bool) {
	if f := b.flags[r.flag]; f != nil && f.given {
		return f.values, "--" + r.flag, nil, true
	}
	for _, name := range r.env {
		text, ok := b.lookupEnv(name)
		if !ok || text == "" && !r.empty {
			continue
		}
		values = []string{text}
		if isList(r.into(new(target))) {
			values = split(text)
		}
		if r.lax {
			readable := slices.DeleteFunc(slices.Clone(values), func(v string) bool { return r.check(v) != nil })
			skipped = slices.DeleteFunc(values, func(v string) bool { return r.check(v) == nil })
			values = readable
		}
		return values, name, skipped, true
	}
	return nil, "", nil, false
}

// set reads the values that one origin has for the row.
func (r *row) set(t *target, values []string) error {
	dst := r.into(t)
	if len(r.oneOf) > 0 && len(values) == 0 {
		return fmt.Errorf("want at least one of %s", strings.Join(r.oneOf, ", "))
	}
	unique := make([]string, 0, len(values))
	for _, v := range values {
		if len(r.oneOf) > 0 && !slices.Contains(r.oneOf, v) {
			return fmt.Errorf("%q: want %s", v, or(r.oneOf))
		}
		if r.check != nil {
			if err := r.check(v); err != nil {
				return err
			}
		}
		if !slices.Contains(unique, v) {
			unique = append(unique, v)
		}
	}
	return assign(dst, unique)
}

// Loaded is what was made of all that was given.
type Loaded struct {
	Settings Settings
	Config   string            // the name of the config that was chosen; empty where there are none
	Notices  []string          // a line each: what is ignored, or means more than it does to NVIDIA's plugin
	Origins  map[string]string // by flag, or path in the file: a flag, a variable, or file:line; none for a default
	// UnknownKeys are ignored, in the order of their lines.
	UnknownKeys []UnknownKey

	sum sum // of what was read
}

// Load reads the file that flags or environment name, if any, and makes Settings
// of all three.
func (b *Builder) Load() (Loaded, error) {
	source, err := b.Source()
	if err != nil {
		return Loaded{}, err
	}
	if source.File == "" && (source.Name != "" || source.NameFile != "") {
		return Loaded{}, errors.New("want --config-file, for --config-name and --config-name-file choose from what it names")
	}
	return b.LoadFrom(source)
}

// LoadFrom is Load with the file named.
func (b *Builder) LoadFrom(source Source) (Loaded, error) {
	c, err := source.fetch()
	if err != nil {
		return Loaded{}, fmt.Errorf("read config: %w", err)
	}
	return b.load(c)
}

// Source is where flags and environment say that the file is.
func (b *Builder) Source() (Source, error) {
	var t target
	for i := range rows {
		if r := &rows[i]; r.read == nil && r.path == "" {
			if _, _, err := b.apply(r, &t, nil); err != nil {
				return Source{}, err
			}
		}
	}
	return t.source, nil
}

func (b *Builder) load(c content) (Loaded, error) {
	d, err := c.parse()
	if err != nil {
		return Loaded{}, err
	}
	t := target{}
	l := Loaded{Config: d.name, Origins: map[string]string{}, sum: c.sum()}
	for i := range rows {
		origin, skipped, err := b.apply(&rows[i], &t, d)
		if err != nil {
			return Loaded{}, err
		}
		if origin != "" {
			l.Origins[rows[i].name()] = origin
		}
		if len(skipped) > 0 {
			d.notices = append(d.notices, fmt.Sprintf("%s: skipped %q, which are no Xids", origin, skipped))
		}
	}
	if err := t.finish(d, l.Origins); err != nil {
		return Loaded{}, err
	}
	slices.SortStableFunc(d.unknown, func(a, b UnknownKey) int { return cmp.Compare(a.Line, b.Line) })
	l.Settings, l.Notices, l.UnknownKeys = t.Settings, d.notices, d.unknown
	return l, nil
}

// name is what a setting is called when no file is spoken of.
func (r *row) name() string {
	if r.flag != "" {
		return r.flag
	}
	return r.path
}

// apply sets one row from the first origin that has it. This is the one place
// that knows the precedence.
func (b *Builder) apply(r *row, t *target, d *document) (origin string, skipped []string, err error) {
	if r.flag != "" {
		values, origin, skipped, given := b.outside(r)
		if given {
			if err := r.set(t, values); err != nil {
				return "", nil, fmt.Errorf("%s: %w", origin, err)
			}
			return origin, skipped, nil
		}
	}
	if d != nil && d.values[r.path] != nil {
		n := d.values[r.path]
		return fmt.Sprintf("%s:%d", d.file, n.line), nil, d.located(under(d.prefix+r.path, n, r.readFrom(d, t, n)))
	}
	if r.byDef == "" {
		return "", nil, nil
	}
	return "", nil, r.set(t, []string{r.byDef})
}

// readFrom sets a row from a file.
func (r *row) readFrom(d *document, t *target, n *node) error {
	if r.read != nil {
		return r.read(d, t, n, d.prefix+r.path)
	}
	values, err := n.values(r.into(t))
	if err != nil {
		return err
	}
	return r.set(t, values)
}

// finish settles what follows from several settings together.
func (t *target) finish(d *document, origins map[string]string) error {
	if t.DevRoot == "" {
		t.DevRoot = t.DriverRoot
	}
	t.Health = health(t.ignoreXids, t.countXids, t.singleXids)
	mps, turns := &t.Sharing.MPS, &t.Sharing.TimeSlicing
	if len(mps.Resources) > 0 && len(turns.Resources) > 0 {
		d.notices = append(d.notices, fmt.Sprintf("%s: sharing.timeSlicing is ignored, since there is sharing.mps; NVIDIA's plugin does so too", origins["sharing.timeSlicing"]))
		*turns = Shared{}
	}
	if len(mps.Resources) > 0 && t.MIGStrategy == MIGMixed {
		return fmt.Errorf("%s: sharing.mps: not with MIG strategy mixed (%s); MPS shares whole GPUs only", origins["sharing.mps"], origins["mig-strategy"])
	}
	if len(mps.Resources) > 0 && t.MPSRoot == "" {
		return fmt.Errorf("%s: sharing.mps: wants --mps-root (MPS_ROOT, flags.mpsRoot), the folder of a running MPS control daemon", origins["sharing.mps"])
	}
	return nil
}

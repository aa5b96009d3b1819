package config

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// schemaVersion is the version of NVIDIA's schema.
const schemaVersion = "v1"

// ignoredKeys are the keys of GPU feature discovery, a reader of the same file.
var ignoredKeys = []string{"flags.gfd", "flags.useNodeFeatureAPI"}

// document is a config in a file.
type document struct {
	file    string
	name    string                // of the config; empty: the only config of the file
	prefix  string                // path of the config in the file: "configs.mixed."
	values  map[string]*yaml.Node // by the path of the setting
	notices []string
	unknown []UnknownKey
}

// reader reads the value of the key at a path.
type reader func(n *yaml.Node, path string) error

func (d *document) addNotice(n *yaml.Node, format string, args ...any) {
	d.notices = append(d.notices, fmt.Sprintf("%s:%d: %s", d.file, n.Line, fmt.Sprintf(format, args...)))
}

// located puts the file and the line before an error.
func (d *document) located(err error) error {
	e, _ := errors.AsType[ParseError](err)
	switch {
	case err == nil:
		return nil
	case e.line > 0:
		return fmt.Errorf("%s:%d: %w", d.file, e.line, err)
	}
	return fmt.Errorf("%s: %w", d.file, err)
}

// readConfig collects the values of all settings.
func (d *document) readConfig(root *yaml.Node) error {
	if isNull(root) {
		return ParseError{root.Line, strings.TrimSuffix(d.prefix, "."), "is empty"}
	}
	known := d.readersBelow("")
	versioned := false
	known["version"] = func(n *yaml.Node, _ string) error {
		versioned = true
		return checkVersion(n, "")
	}
	misplaced := func(*yaml.Node, string) error {
		return errors.New("want this key at the top of --config-file")
	}
	if err := d.readFields(root, strings.TrimSuffix(d.prefix, "."), known, map[string]reader{"configs": misplaced, "default": misplaced}); err != nil {
		return err
	}
	if !versioned && d.prefix == "" {
		d.addNotice(root, "no version; read as %s", schemaVersion)
	}
	return nil
}

func checkVersion(n *yaml.Node, _ string) error {
	if n.ShortTag() == "!!str" && n.Value == schemaVersion {
		return nil
	}
	return fmt.Errorf("%q: want %s", n.Value, schemaVersion)
}

// readersBelow returns the readers of the table's keys below a path.
func (d *document) readersBelow(path string) map[string]reader {
	known := map[string]reader{}
	for i := range allSettings {
		rest, below := strings.CutPrefix(allSettings[i].path, path)
		key, _, deeper := strings.Cut(rest, ".")
		child := path + key
		switch {
		case !below || key == "":
		case deeper:
			known[key] = func(n *yaml.Node, path string) error {
				return d.readFields(n, path, d.readersBelow(child+"."), nil)
			}
		default:
			known[key] = func(n *yaml.Node, _ string) error {
				d.values[child] = n
				return nil
			}
		}
	}
	return known
}

// readFields reads the known keys of a mapping, and collects unknown keys. Hidden keys are known, but not suggested.
func (d *document) readFields(n *yaml.Node, path string, known, hidden map[string]reader) error {
	entries, err := entriesOf(n, path)
	if err != nil {
		return err
	}
	if path != "" {
		path += "."
	}
	for _, e := range entries {
		read, ok := known[e.key]
		if !ok {
			read, ok = hidden[e.key]
		}
		switch {
		case slices.Contains(ignoredKeys, strings.TrimPrefix(path+e.key, d.prefix)):
			d.addNotice(e.value, "%s: key of NVIDIA's GPU feature discovery, ignored", path+e.key)
		case !ok:
			d.unknown = append(d.unknown, UnknownKey{
				File: d.file, Line: e.value.Line, Key: quoteUnprintable(path + e.key), Hint: suggestKey(e.key, slices.Sorted(maps.Keys(known))),
			})
		case !isNull(e.value):
			if err := at(e.value, path+e.key, read(e.value, path+e.key)); err != nil {
				return err
			}
		}
	}
	return nil
}

// readItems reads the items of a list.
func readItems(n *yaml.Node, path string, read reader) error {
	items, err := itemsOf(n, path)
	for i := 0; err == nil && i < len(items); i++ {
		itemPath := fmt.Sprintf("%s[%d]", path, i)
		err = at(items[i], itemPath, read(items[i], itemPath))
	}
	return err
}

// readValues reads a setting with a flag, and returns the values in the flag's form.
func readValues(n *yaml.Node, path string, dst any) ([]string, error) {
	switch {
	case isBool(dst):
		b, err := boolOf(n)
		return []string{strconv.FormatBool(b)}, err
	case !isList(dst):
		s, err := stringOf(n)
		return []string{s}, err
	case n.Kind == yaml.ScalarNode: // NVIDIA's deviceListStrategy is a string or a list
		s, err := stringOf(n)
		return splitList(s), err
	}
	var values []string
	err := readItems(n, path, func(item *yaml.Node, _ string) error {
		s, err := stringOf(item)
		values = append(values, s)
		return at(item, path, err)
	})
	return values, err
}

// readStructure reads a setting without a flag.
func (d *document) readStructure(dst any, n *yaml.Node, path string) error {
	switch dst := dst.(type) {
	case *SharingMethod:
		return d.readSharing(dst, n, path)
	case *[]NamePattern:
		return d.readPatterns(dst, n, path)
	case *map[uint64]XidPolicy:
		return readXids(dst, n, path)
	default:
		panic(fmt.Sprintf("config: a structure of type %T", dst))
	}
}

// readSharing reads sharing.timeSlicing or sharing.mps.
func (d *document) readSharing(dst *SharingMethod, n *yaml.Node, path string) error {
	dst.FailRequestsGreaterThanOne = path == d.prefix+"sharing.mps" // the default of NVIDIA's plugin
	err := d.readFields(n, path, map[string]reader{
		"renameByDefault":            readBool(&dst.RenameByDefault),
		"failRequestsGreaterThanOne": readBool(&dst.FailRequestsGreaterThanOne),
		"resources": func(n *yaml.Node, path string) error {
			return readItems(n, path, func(n *yaml.Node, path string) error {
				r, err := d.readSharedResource(n, path)
				dst.Resources = append(dst.Resources, r)
				return err
			})
		},
	}, nil)
	if err == nil && len(dst.Resources) == 0 {
		err = errors.New("no resources")
	}
	for i := 0; err == nil && i < len(dst.Resources); i++ {
		r := &dst.Resources[i]
		if !dst.RenameByDefault || r.Rename != "" {
			continue
		}
		r.Rename = r.Name + ".shared"
		if invalid := CheckResourceName(r.Rename); invalid != nil {
			err = fmt.Errorf("renamed by default: %w", invalid)
		}
	}
	return err
}

func (d *document) readSharedResource(n *yaml.Node, path string) (SharedResource, error) {
	r := SharedResource{Devices: DeviceSelection{All: true}}
	list, _, _ := strings.Cut(path, "[")
	err := d.readFields(n, path, map[string]reader{
		"name": readResourceName(&r.Name),
		"rename": func(n *yaml.Node, path string) error {
			d.noticeHonoured(n, list+": rename")
			return readResourceName(&r.Rename)(n, path)
		},
		"devices": func(n *yaml.Node, path string) (err error) {
			if r.Devices, err = readDevices(n, path); !r.Devices.All {
				d.noticeHonoured(n, list+": devices")
			}
			return err
		},
		"replicas": func(n *yaml.Node, _ string) (err error) {
			if r.Replicas, err = intOf(n); err == nil && (r.Replicas < 2 || r.Replicas > maxReplicas) {
				err = fmt.Errorf("%d: want 2 to %d", r.Replicas, maxReplicas)
			}
			return err
		},
	}, nil)
	switch {
	case err == nil && r.Name == "":
		err = errors.New("no name")
	case err == nil && r.Replicas == 0:
		err = errors.New("no replicas")
	}
	return r, err
}

// readDevices reads "all", a count, or a list of devices.
func readDevices(n *yaml.Node, path string) (selection DeviceSelection, err error) {
	if n.Kind == yaml.SequenceNode {
		values, err := readValues(n, path, &selection.List)
		if err == nil && len(values) == 0 {
			err = errors.New("an empty list")
		}
		return selection, cmp.Or(err, assignValues(&selection.List, values))
	}
	if count, err := intOf(n); err == nil && count > 0 {
		return DeviceSelection{Count: count}, nil
	}
	if n.Value == "all" {
		return DeviceSelection{All: true}, nil
	}
	return selection, fmt.Errorf("%q: want all, a count, or a list of devices", n.Value)
}

// readPatterns reads resources.gpus or resources.mig.
func (d *document) readPatterns(dst *[]NamePattern, n *yaml.Node, path string) error {
	if len(n.Content) > 0 {
		d.noticeHonoured(n, path)
	}
	return readItems(n, path, func(n *yaml.Node, path string) error {
		var p NamePattern
		err := d.readFields(n, path, map[string]reader{
			"pattern": func(n *yaml.Node, _ string) (err error) { p.Pattern, err = stringOf(n); return err },
			"name":    readResourceName(&p.Name),
		}, nil)
		switch {
		case err == nil && p.Pattern == "":
			err = errors.New("no pattern")
		case err == nil && p.Name == "":
			err = errors.New("no name")
		}
		*dst = append(*dst, p)
		return err
	})
}

// readXids reads podgauge.xids: a mapping of Xids to policies.
func readXids(dst *map[uint64]XidPolicy, n *yaml.Node, path string) error {
	entries, err := entriesOf(n, path)
	if err != nil {
		return err
	}
	policies := map[uint64]XidPolicy{}
	for _, e := range entries {
		xid, err := strconv.ParseUint(e.key, 10, 64)
		word, wordErr := stringOf(e.value)
		policy := slices.Index(xidPolicyNames, word)
		switch {
		case err != nil || xid == 0:
			err = errors.New("want the number of an Xid")
		case isNull(e.value):
			continue
		case policies[xid] != XidDefault:
			err = fmt.Errorf("duplicate Xid %d", xid)
		case wordErr != nil:
			err = wordErr
		case policy <= int(XidDefault):
			err = fmt.Errorf("%q: want %s", word, joinOr(xidPolicyNames[XidIgnore:]))
		}
		if err != nil {
			return at(e.value, path+"."+e.key, err)
		}
		policies[xid] = XidPolicy(policy)
	}
	if len(policies) > 0 {
		*dst = policies
	}
	return nil
}

// noticeHonoured adds a notice, once per key, about keys with no effect in NVIDIA's plugin.
func (d *document) noticeHonoured(n *yaml.Node, what string) {
	text := what + ": in effect here, ignored by NVIDIA's plugin"
	if !slices.ContainsFunc(d.notices, func(notice string) bool { return strings.HasSuffix(notice, text) }) {
		d.addNotice(n, "%s", text)
	}
}

func readBool(dst *bool) reader {
	return func(n *yaml.Node, _ string) (err error) {
		*dst, err = boolOf(n)
		return err
	}
}

func readResourceName(dst *string) reader {
	return func(n *yaml.Node, _ string) error {
		name, err := stringOf(n)
		if err != nil {
			return err
		}
		*dst, err = resourceName(name)
		return err
	}
}

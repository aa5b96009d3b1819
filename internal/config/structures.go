package config

import (
	"slices"

	"go.yaml.in/yaml/v3"
)

// What only a file can say: the settings that have parts.

// readShared reads sharing.timeSlicing or sharing.mps.
func readShared(d *configDocument, dst *SharingMethod, n *node, path string) error {
	err := d.fields(n, path, map[string]func(*node) error{
		"renameByDefault":            func(n *node) (err error) { dst.RenameByDefault, err = n.boolean(); return err },
		"failRequestsGreaterThanOne": func(n *node) (err error) { dst.FailRequestsGreaterThanOne, err = n.boolean(); return err },
		"resources": func(n *node) error {
			return n.each(path+".resources", func(n *node, path string) error {
				r, err := readSharedResource(d, n, path)
				dst.Resources = append(dst.Resources, r)
				return err
			})
		},
	})
	if err == nil && len(dst.Resources) == 0 {
		err = newParseError(n.line, "no resources")
	}
	if err != nil || !dst.RenameByDefault {
		return err
	}
	for i := range dst.Resources {
		r := &dst.Resources[i]
		if r.Rename != "" {
			continue
		}
		r.Rename = r.Name + ".shared"
		if err := CheckResourceName(r.Rename); err != nil {
			return newParseError(n.line, "renamed by default: %v", err)
		}
	}
	return nil
}

func readSharedResource(d *configDocument, n *node, path string) (SharedResource, error) {
	r := SharedResource{Devices: DeviceSelection{All: true}}
	err := d.fields(n, path, map[string]func(*node) error{
		"name":    func(n *node) (err error) { r.Name, err = n.resource(); return err },
		"rename":  func(n *node) (err error) { r.Rename, err = n.resource(); return err },
		"devices": func(n *node) (err error) { r.Devices, err = readDevices(n); return err },
		"replicas": func(n *node) (err error) {
			r.Replicas, err = n.integer()
			if err == nil && (r.Replicas < 2 || r.Replicas > maxReplicas) {
				return newParseError(n.line, "%d: want 2 to %d", r.Replicas, maxReplicas)
			}
			return err
		},
	})
	switch {
	case err != nil:
		return r, err
	case r.Name == "":
		return r, newParseError(n.line, "no name")
	case r.Replicas == 0:
		return r, newParseError(n.line, "no replicas")
	}
	return r, nil
}

// readDevices reads "all", a count, or a list of devices.
func readDevices(n *node) (DeviceSelection, error) {
	if n.kind == yaml.SequenceNode {
		values, err := n.values(&[]DeviceSelector{})
		if err != nil {
			return DeviceSelection{}, err
		}
		var list []DeviceSelector
		if err := assignValues(&list, values); err != nil || len(list) > 0 {
			return DeviceSelection{List: list}, err
		}
		return DeviceSelection{}, newParseError(n.line, "an empty list")
	}
	if count, err := n.integer(); err == nil && count > 0 {
		return DeviceSelection{Count: count}, nil
	}
	if n.kind == yaml.ScalarNode && n.text == "all" {
		return DeviceSelection{All: true}, nil
	}
	return DeviceSelection{}, newParseError(n.line, "%q: want all, a count of devices, or a list of them", n.text)
}

// readPatterns reads resources.gpus or resources.mig.
func readPatterns(d *configDocument, dst *[]NamePattern, n *node, path string) error {
	return n.each(path, func(n *node, path string) error {
		var p NamePattern
		err := d.fields(n, path, map[string]func(*node) error{
			"pattern": func(n *node) (err error) { p.Pattern, err = n.word(); return err },
			"name":    func(n *node) (err error) { p.Name, err = n.resource(); return err },
		})
		*dst = append(*dst, p)
		switch {
		case err != nil:
			return err
		case p.Pattern == "":
			return newParseError(n.line, "no pattern")
		case p.Name == "":
			return newParseError(n.line, "no name")
		}
		return nil
	})
}

// honoured are the keys that NVIDIA's plugin reads and then ignores with a line
// in its log, so that who comes from there learns that they now do something.
func (d *configDocument) honoured() {
	for _, path := range []string{"resources.gpus", "resources.mig"} {
		if n := d.values[path]; n != nil && len(n.items) > 0 {
			d.addNotice(n.line, "%s: honoured, where NVIDIA's plugin ignores it", path)
		}
	}
	for _, path := range []string{"sharing.timeSlicing", "sharing.mps"} {
		n := d.values[path]
		if n == nil {
			continue
		}
		var said []string
		for _, item := range itemsOf(n.get("resources")) {
			for _, key := range []string{"rename", "devices"} {
				v := item.get(key)
				if v != nil && !v.null() && v.text != "all" && !slices.Contains(said, key) {
					said = append(said, key)
					d.addNotice(v.line, "%s.resources: %s: honoured, where NVIDIA's plugin ignores it", path, key)
				}
			}
		}
	}
}

func itemsOf(n *node) []*node {
	if n == nil {
		return nil
	}
	return n.items
}

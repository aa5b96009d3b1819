package config

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/podgauge/podgauge/internal/device"
)

// DeviceSelector selects devices by index ("0"), MIG index ("0:1"), UUID, PCI
// address, or "model:" and a glob. A selector of a GPU also selects the GPU's
// MIG devices.
type DeviceSelector string

// modelPrefix begins a selector of a GPU model.
const modelPrefix = "model:"

var (
	// deviceUUID matches the UUID of a GPU or MIG device. Drivers before R470
	// have "MIG-<UUID of the GPU>/<GI>/<CI>".
	deviceUUID = regexp.MustCompile(strings.ReplaceAll(`^(GPU-UUID|MIG-UUID|MIG-GPU-UUID/\d+/\d+)$`,
		"UUID", `[[:xdigit:]]{8}(-[[:xdigit:]]{4}){3}-[[:xdigit:]]{12}`))
	pciAddress = regexp.MustCompile(`^(?:([[:xdigit:]]{1,8}):)?([[:xdigit:]]{1,2}):([01]?[[:xdigit:]])\.([0-7])$`)
)

// ParseDeviceSelector returns the normal form of a selector.
func ParseDeviceSelector(s string) (DeviceSelector, error) {
	glob, isModel := strings.CutPrefix(s, modelPrefix)
	if isModel && glob != "" || deviceUUID.MatchString(s) {
		return DeviceSelector(s), nil
	}
	if normal := cmp.Or(normalizeIndex(s), normalizePCI(s)); normal != "" {
		return DeviceSelector(normal), nil
	}
	return "", fmt.Errorf("%q: expected an index (0), a MIG index (0:1), a UUID (GPU-…, MIG-…), "+
		"a PCI address (0000:3b:00.0) or model:GLOB", s)
}

// Matches reports whether s selects d.
func (s DeviceSelector) Matches(d device.Device) bool {
	if glob, ok := strings.CutPrefix(string(s), modelPrefix); ok {
		return matchGlob(glob, d.Model)
	}
	names := []string{string(d.ID), string(d.GPU), strconv.Itoa(d.Index), d.Number(), normalizePCI(d.PCI)}
	return slices.ContainsFunc(names, func(name string) bool { return strings.EqualFold(string(s), name) })
}

// isExact reports whether s is a device's name, rather than a glob.
func (s DeviceSelector) isExact() bool { return !strings.HasPrefix(string(s), modelPrefix) }

// DeviceFilter selects the advertised devices.
type DeviceFilter struct {
	Include []DeviceSelector // empty: all devices
	Exclude []DeviceSelector // beats Include
}

// Allows reports whether d is advertised.
func (f DeviceFilter) Allows(d device.Device) bool {
	selects := func(s DeviceSelector) bool { return s.Matches(d) }
	return (len(f.Include) == 0 || slices.ContainsFunc(f.Include, selects)) && !slices.ContainsFunc(f.Exclude, selects)
}

// matchGlob reports whether the whole of s matches a glob. Only * is special,
// and case counts.
func matchGlob(glob, s string) bool {
	pattern := strings.ReplaceAll(regexp.QuoteMeta(strings.ToValidUTF8(glob, "?")), `\*`, ".*")
	return regexp.MustCompile("(?s)^" + pattern + "$").MatchString(strings.ToValidUTF8(s, "?"))
}

// normalizeIndex returns an index or MIG index without leading zeros; empty:
// not an index.
func normalizeIndex(s string) string {
	gpu, mig, isMIG := strings.Cut(s, ":")
	n, err := strconv.ParseUint(gpu, 10, 16)
	switch m, migErr := strconv.ParseUint(mig, 10, 16); {
	case err == nil && !isMIG:
		return strconv.FormatUint(n, 10)
	case err == nil && migErr == nil:
		return fmt.Sprintf("%d:%d", n, m)
	}
	return ""
}

// normalizePCI returns a bus address in the form of Linux; empty: not an
// address. NVML has a domain of 8 digits and upper case, and lspci omits domain
// 0.
func normalizePCI(s string) string {
	parts := pciAddress.FindStringSubmatch(s)
	if parts == nil {
		return ""
	}
	var n [4]uint64
	for i := range n {
		n[i], _ = strconv.ParseUint(cmp.Or(parts[i+1], "0"), 16, 32) //nolint:errcheck // the pattern has matched digits
	}
	return fmt.Sprintf("%04x:%02x:%02x.%x", n[0], n[1], n[2], n[3])
}

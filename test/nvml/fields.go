package nvmltest

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
)

var fieldPattern = regexp.MustCompile(`(?m)^#define\s+(NVML_FI_\w+)\s+(\d+)\b`)

// FieldNames returns the names of the NVML fields by id, from nvml.h.
func FieldNames() (map[int]string, error) {
	dir, err := nvmlHeaderDir()
	if err != nil {
		return nil, err
	}
	header, err := os.ReadFile(filepath.Join(dir, "nvml.h"))
	if err != nil {
		return nil, fmt.Errorf("read NVML's header: %w", err)
	}
	names := map[int]string{}
	for _, m := range fieldPattern.FindAllStringSubmatch(string(header), -1) {
		n, err := strconv.Atoi(m[2])
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", m[1], err)
		}
		if _, known := names[n]; !known {
			names[n] = m[1]
		}
	}
	return names, nil
}

package node

import (
	"fmt"
	"strconv"
)

// Number distinguishes up to ten nodes on a machine, 0 to 9. The names of the
// node's resources include the number.
type Number int

// parseNumber parses the number of the environment; empty means 0.
func parseNumber(s string) (Number, error) {
	if s == "" {
		return 0, nil
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < 0 || n > 9 {
		return 0, fmt.Errorf("PODGAUGE_E2E_NODE is %q, not a number from 0 to 9", s)
	}
	return Number(n), nil
}

// name returns the name of the machine's network link, with at most 15 bytes,
// of the node's cgroups, and of the locks.
func (n Number) name() string {
	if n == 0 {
		return "podgauge-e2e"
	}
	return fmt.Sprintf("podgauge-e2e-%d", n)
}

func (n Number) nodeIP() string { return fmt.Sprintf("10.250.%d.2", n) }

func (n Number) machineIP() string { return fmt.Sprintf("10.250.%d.1", n) }

// podSubnet returns the subnet of the node's pods.
func (n Number) podSubnet() string { return fmt.Sprintf("10.251.%d.0/24", n) }

package node

import (
	"fmt"
	"strconv"
)

// Number is that of one of the nodes that a machine may have at the same time, 0 to 9. Whatever exists once on a machine has it in its name.
type Number int

// parseNumber reads a number as the environment has it; empty is zero.
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

// name is that of the machine's end of the node's network cable, which has 15 bytes at most, of the node's cgroups, and of the locks.
func (n Number) name() string {
	if n == 0 {
		return "podgauge-e2e"
	}
	return fmt.Sprintf("podgauge-e2e-%d", n)
}

func (n Number) nodeIP() string { return fmt.Sprintf("10.250.%d.2", n) }

func (n Number) machineIP() string { return fmt.Sprintf("10.250.%d.1", n) }

// podSubnet is where the node's pods get their addresses.
func (n Number) podSubnet() string { return fmt.Sprintf("10.251.%d.0/24", n) }

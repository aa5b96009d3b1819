package health_test

import "testing"

// TestRetire checks that a retired device is unhealthy, independent of other
// evidence, until it is trusted.
func TestRetire(t *testing.T) {
	runScenarios(t, []scenario{
		{"a GPU with MIG devices", 2, `partition g0 1g.10gb 1g.10gb; start; 11s; retire g0 fan
			0s: retired retired retired -; note fan fan fan -; health unhealthy unhealthy unhealthy healthy
			action - - - -; since 0s; flaps 0 0 0 0; events retired!:g0,d0,d1; 1s; saves 2 1
			fail d0 xid 95; 1m: retired retired retired -; reset g0; 20m: retired retired retired -
			trust g0 retired; 0s: - - - -`},
		{"a MIG device", 2, `partition g0 1g.10gb 1g.10gb; start; 11s; retire d0 slow; 1m: - retired - -
			retire d2 other; trust d0 retired; 0s: - - - retired; retire d0 again; trust g0 retired; 0s: - - - retired
			trust g0; 0s: - - - retired`},
		{"an unknown device", 1, `1s; retire GPU-none fan unknown device; trust GPU-none unknown device`},
		{"restarts and reboots", 3, `partition g2 1g.10gb 1g.10gb; start; 1s; retire d0 fan; retire d2 slow
			fail d0 xid 95; 1s
			restart; 1m: retired - - retired -; note fan - - slow -
			reboot; 1m: retired - - retired -; note fan - - slow -
			fail d2 lost; 1m; trust d2 retired GPU is lost; 0s: retired - lost lost lost`},
		{"a GPU that is removed", 2, `1s; retire d0 fan; remove d0; 1m: retired -; gone gone -; 20m: -
			reboot; 1m: -; reset d0; 1m: retired -
			remove d0; 20m: -; trust d0 retired does not list; reset d0; 1m: - -; restart; 1m: - -`},
	})
}

// TestTrust checks that a trusted device that passes its check is healthy at
// once, without a reset or a recovery period, and that trust ends no cause that
// the check finds.
func TestTrust(t *testing.T) {
	runScenarios(t, []scenario{
		{"a wrong reason", 2, `partition g1 1g.10gb 1g.10gb; start; 11s
			fail d0 xid 95; 1s; reset d0; 20m; fail d0 xid 95; 1s; reset d0; 20m; fail d0 xid 95; 1s; reset d0; 20m
			fail d0 xid 95; repair d0; fail d1 xid 999; 20m: xid_95 - xid_999 -; action replace - reset_gpu -
			flaps 4 0 1 0
			trust d0 repair; 0s: - - xid_999 -; trust d1; 20m: - - - -
			fail d0 xid 95; 1s: xid_95 - - -; action reset_gpu - - -; flaps 5 0 1 0`},
		{"fallen off the bus", 2, `1s; retire d0 fan; fail d0 lost; 1m; trust d0 retired lost; 0s: lost -; note - -`},
		{"a fault", 2, `1s; retire d0 fan; check d0 nvlink inspect; 1m; trust d0 retired nvlink; 0s: nvlink -`},
		{"an Xid, and a check without a reason", 2, `1s; retire d0 fan; fail d0 xid 95; check d0 unknown; 1m
			trust d0 retired UNKNOWN; 0s: xid_95 -`},
		{"gone", 2, `1s; retire d0 fan; remove d0; 1m; trust d0 retired does not list; 0s: lost -`},
		{"a call that hangs", 2, `1s; retire d0 fan; hang d0; 1m
			trust d0 retired no check of the GPU ended within 5s; 0s: not_responding -; respond`},
		{"a driver that was released", 2, `1s; retire d0 fan; release; 1m
			trust d0 retired no check of the GPU ended; 0s: released released`},
	})
}

// TestXidsOver checks that a recovery, a Trust and a release of the driver end
// the Xids before.
func TestXidsOver(t *testing.T) {
	runScenarios(t, []scenario{
		{"recovered", 1, `1s; fail d0 xid 31; 1s; over false; fail d0 xid 95; 1m; reset d0; 20m; over true`},
		{"trusted", 1, `1s; fail d0 xid 31; 1s; over false; trust d0; 1s; over true`},
		{"released", 1, `1s; fail d0 xid 31; 1s; over false; release; resume; 1s; over true`},
	})
}

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

// TestListed checks that a device in the list of retirements is unhealthy while it is listed, independent of the
// commands on the node.
func TestListed(t *testing.T) {
	runScenarios(t, []scenario{
		{"from the first publication on", 2, `list g1=fan@240h GPU-elsewhere=fan; start; first 3s - retired; note - fan
			events retired!:g1; list empty; 1s: - -; events`},
		{"a GPU with MIG devices, by its serial number", 2, `partition g0 1g.10gb 1g.10gb; start; 11s; list s0=rma@1h
			1s: retired retired retired -; note rma rma rma -; since 1h0m12s; flaps 0 0 0 0; events retired!:g0,d0,d1
			list s0=repaired@2h; 1s: retired retired retired -; note repaired repaired repaired -; since 2h0m13s; events
			list empty; 1s: - - - -`},
		{"a MIG device", 2, `partition g0 1g.10gb 1g.10gb; start; 11s; list d0=slow; 1s: - retired - -; list empty; 1s: - - - -`},
		{"without a date, and with one in the future", 1, `5s; list g0=fan; 1m: retired; since 59s; list g0=fan@-9h; 1m: retired; since 1m59s
			restart; 1m: retired; since 2m59s; events retired!:g0`},
		{"retired by a command as well", 2, `1s; retire d0 fan; list g0=rma@1h; 1s: retired -; note rma -; events retired!:g0
			list empty; 1s: retired -; note fan -; list g0=rma; 1s; trust d0 retired; 0s: retired -; note rma -
			restart; 1m: retired -; note rma -; list empty; 1s: - -`},
		{"an unknown list", 2, `1s; list g0=fan; 1s: retired -; list unknown; restart; 1m: retired -; events retired!:g0
			list empty; 1s: - -; records - -`},
		{"an incomplete list", 2, `1s; list g0=fan; 1s: retired -; list g1=rma *=; restart; 1m: retired retired
			list g1=rma; 1s: - retired`},
		// Older versions read only Retired of a record.
		{"for older versions", 2, `1s; list g0=fan; 1s; records -+retiredByList -; remove g0; 20m; records lost+retiredByList -
			restart; 1m; trust g0 unknown device; list g0=rma; 1s; records lost+retiredByList -; list empty; 1s; records lost -`},
		{"for older versions, by a command as well", 2, `1s; retire d0 fan; list g0=rma; 1s; records -+retired -
			remove g0; 20m; records lost+retired -; trust g0 retired does not list; records lost+retiredByList -
			list empty; 1s; records lost -`},
		{"reimaged", 2, `list g0=fan@240h; start; 1s: retired -; since 240h0m1s; stop; lose; start; 1m: retired -`},
		{"a GPU that is gone", 2, `list s0=fan; start; 1s; remove g0; 1m: retired -; gone gone -; missing; 20m: -; missing
			restart; 1m: -; missing; list empty; 1s; missing g0`},
	})
}

// TestFaultBehind checks that a retired device shows its fault, and whether the device still has it.
func TestFaultBehind(t *testing.T) {
	runScenarios(t, []scenario{
		{"a fault before the retirement", 2, `1s; fail d0 xid 95; 1s; behind - -; retire d0 fan; 0s: retired -; action - -
			behind xid_95!reset_gpu -; restart; 10s; behind xid_95!reset_gpu -; reset d0; 1m: retired -; behind xid_95 -
			restart; 10s; behind xid_95 -; trust d0 retired; 0s: - -; behind - -`},
		{"a fault during the retirement", 2, `list g0=fan; start; 1s; behind - -; check d0 nvlink inspect; 5s
			behind nvlink!inspect -; fail d0 lost; 5s; behind nvlink!inspect -; list empty; 1s: nvlink -; behind - -`},
		{"of a MIG device", 1, `partition g0 1g.10gb 1g.10gb; start; 11s; kernel d0 95; 1s; list g0=fan; 1s
			behind - xid_95!reset_gpu -; reset g0; 1m; behind - xid_95 -; restart; 10s; behind - xid_95 -; fail d1 lost; 5s; behind lost!reboot lost!reboot lost!reboot`},
		{"of the GPU", 1, `partition g0 1g.10gb 1g.10gb; start; 11s; list d0=fan; fail g0 lost; 5s: lost retired lost
			behind - lost!reboot -`},
		{"trusted", 2, `1s; fail d0 xid 95; list g0=fan; 1s; trust d0; 1s: retired -; behind xid_95 -`},
		{"a driver that is released", 1, `1s; list g0=fan; 1s: retired; release; 1s: released; behind -; note -; resume; 1m: retired; behind -`},
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

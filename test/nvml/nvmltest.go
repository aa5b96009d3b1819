// Package nvmltest is a stand-in for libnvidia-ml.so.1: a machine full of GPUs
// that obeys a text file, for tests of the real program through the real dlopen.
//
// Build compiles it, a Scenario tells it what the machine is like, and Calls are
// what was asked of it:
//
//	lib, err := nvmltest.Build(dir)
//	machine := nvmltest.NewScenario(path)
//	err = machine.Set("gpus 8", "gpu 3 temperature 50", "gpu 3 power 100000~700000/60s")
//	// podgauge runs with NVML_STANDIN=path and finds lib
//	err = machine.Event(3, "xid 79")
//	err = machine.Set("hang * gpu 5")
//	err = machine.Clear("hang")
//
// A program in which NVML_STANDIN is not set, or names no file, is on a node
// without a driver. The file may change at any time and is read again before the
// next call is answered. A file that is not understood changes nothing and is
// complained about once, on standard error.
//
// A scenario has one directive a line, words separated by blanks, and comments
// from # on. <sel> is a GPU's index or *, and in fail, slow and hang also -, for
// calls that concern no GPU. Of two lines about the same thing the later one
// holds. All starts as standin/default.scenario says.
//
//	gpus <n>                                how many there are, 16 at most
//	driver <version>
//	epoch <seconds>                         Unix time that values over time count from
//	lock driver                             all calls queue for one lock, as in real drivers
//	gpu <sel> <key> <value>                 README.md lists the keys
//	confidential on|off|devtools|none
//	gpu <sel> model h100|a100|b200|gb200|t4 what such a GPU has; before the lines about it
//	gpu <sel> field <id>[-<id>][/<scope>|/link] <value> [<type>]
//	gpu <sel> metric <id>[-<id>][/<gi>] <value>    of GPM: the mean between two samples
//	gpu <sel> process <pid> <bytes> [gi <n>] [ci <n>] [type compute|graphics|mps] [sm|mem|enc|dec <value>]
//	gpu <sel> slice <index> <profile> gi <n> ci <n> [uuid <text>] [memory <bytes>] [used|bar1 <value>]
//	reuse handles                           a new slice gets a handle that was another's
//	add fields                              nvmlDeviceGetFieldValues adds to the values that it is given
//	gpu <sel> link <n>[-<n>] switch|gpu <i>|off|none
//	ancestor <sel> <sel> internal|single|multiple|hostbridge|node|system
//	gpu <sel> lost                          fallen off the bus
//	gpu <sel> reset <seconds>               Unix time from which its energy counts anew
//	event <serial> gpu <i> xid <n> [gi <n>] [ci <n>] [x <times>]
//	event <serial> gpu <i> type <name|mask> [data <n>] [gi <n>] [ci <n>] [x <times>]
//	fail <function|*|field:<id>|metric:<id>> gpu <sel> <return code>
//	slow <function|*> gpu <sel> <n>ms
//	hang <function|*> gpu <sel>             until the line is gone
//
// A value is a number, "none", "<base>+<slope>/s" or "<low>~<high>/<period>s".
package nvmltest

// The stand-in is told where its files are by the environment of the program
// that loads it. EnvCalls may be left out.
const (
	EnvScenario = "NVML_STANDIN"
	EnvCalls    = "NVML_STANDIN_CALLS"
)

// MaxGPUs is how many GPUs a scenario can have.
const MaxGPUs = 16

// Package nvmltest builds a stand-in for libnvidia-ml.so.1, for tests of the
// real program through the real dlopen. A text file describes the GPUs of the
// simulated machine.
//
// Build compiles the library, a Scenario writes the file, and ReadCalls returns
// the number of calls:
//
//	lib, err := nvmltest.Build(dir)
//	machine := nvmltest.NewScenario(path)
//	err = machine.Set("gpus 8", "gpu 3 temperature 50", "gpu 3 power 100000~700000/60s")
//	// podgauge runs with NVML_STANDIN=path and finds lib
//	err = machine.Event(3, "xid 79")
//	err = machine.Set("hang * gpu 5")
//	err = machine.Clear("hang")
//
// Without NVML_STANDIN, or without the file, the node has no driver. The file
// may change at any time and is read again before the next call. An invalid
// file changes nothing and causes a single message on standard error.
//
// A scenario has a directive per line, words separated by blanks, and comments
// after #. <sel> is a GPU's index or *, and in fail, slow and hang also -, for
// calls without a GPU. A later line replaces an earlier line with the same
// subject. The defaults are in standin/default.scenario.
//
//	gpus <n>                                number of GPUs, at most 16
//	driver <version>
//	epoch <seconds>                         Unix time at which values over time start
//	lock driver                             all calls share a lock, as in real drivers
//	gpu <sel> <key> <value>                 README.md lists the keys
//	confidential on|off|devtools|unready|none
//	gpu <sel> model h100|h200|l40s|… values of the model; before other lines of the GPU
//	gpu <sel> field <id>[-<id>][/<scope>|/link] <value> [<type>]
//	gpu <sel> metric <id>[-<id>][/<gi>] <value>    GPM metric: the mean between two samples
//	gpu <sel> process <pid> <bytes> [gi <n>] [ci <n>] [type compute|graphics|mps] [sm|mem|enc|dec <value>]
//	gpu <sel> slice <index> <profile> gi <n> ci <n> [uuid <text>] [memory <bytes>] [used|bar1 <value>]
//	short processes                         process lists have the 16-byte entries of the first version
//	reuse handles                           a new MIG device gets the handle of a removed one
//	add fields                              nvmlDeviceGetFieldValues adds to the caller's values
//	gpu <sel> link <n>[-<n>] switch|gpu <i>|off|none
//	ancestor <sel> <sel> internal|single|multiple|hostbridge|node|system
//	gpu <sel> lost                          fallen off the bus
//	gpu <sel> reset <seconds>               Unix time at which the energy counter restarts
//	event <serial> gpu <i> xid <n> [gi <n>] [ci <n>] [x <times>]
//	event <serial> gpu <i> type <name|mask> [data <n>] [gi <n>] [ci <n>] [x <times>]
//	fail <function|*|field:<id>|metric:<id>> gpu <sel> <return code>
//	slow <function|*> gpu <sel> <n>ms
//	hang <function|*> gpu <sel>             until the line is removed
//
// A value is a number, "none", "<base>+<slope>/s" or "<low>~<high>/<period>s".
package nvmltest

// Environment variables with the paths of the stand-in's files, read in the
// process that loads the library. EnvCalls is optional.
const (
	EnvScenario = "NVML_STANDIN"
	EnvCalls    = "NVML_STANDIN_CALLS"
)

// MaxGPUs is the largest number of GPUs in a scenario.
const MaxGPUs = 16

package kmsg

import (
	"bytes"
	"strconv"
	"time"
)

// logRecord is one message of the kernel's log, as a read of /dev/kmsg gives it
// (Documentation/ABI/testing/dev-kmsg): "6,339,5140900,-;NVRM: …", and then lines with
// the message's keys, which begin with a blank.
type logRecord struct {
	sequence uint64
	uptime   time.Duration // the boot, by the clock that stands still while the machine sleeps
	message  string
}

// maxKernelPriority is the highest number with which the kernel itself speaks. Who writes to
// /dev/kmsg gets a higher one, which has the facility in it: nobody else can say what the
// driver says.
const maxKernelPriority = 7

// parseRecord reads what a read gave. It is false for what is not the kernel's word.
func parseRecord(data []byte) (r logRecord, ok bool) {
	head, message, found := bytes.Cut(data, []byte(";"))
	fields := bytes.SplitN(head, []byte(","), 4)
	if !found || len(fields) < 3 {
		return logRecord{}, false
	}
	priority, err1 := strconv.ParseUint(string(fields[0]), 10, 32)
	sequence, err2 := strconv.ParseUint(string(fields[1]), 10, 64)
	micros, err3 := strconv.ParseUint(string(fields[2]), 10, 64)
	if err1 != nil || err2 != nil || err3 != nil || priority > maxKernelPriority || micros > maxMicros {
		return logRecord{}, false
	}
	message, _, _ = bytes.Cut(message, []byte("\n"))
	return logRecord{sequence, time.Duration(micros) * time.Microsecond, string(message)}, true
}

// maxMicros is a century: what is more does not fit into a time.Duration for long.
const maxMicros = 100 * 365 * 24 * 3600 * 1e6

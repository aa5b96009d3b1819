package kmsg

import (
	"bytes"
	"strconv"
	"time"
)

// logRecord is a record of the kernel log in the format of /dev/kmsg
// (Documentation/ABI/testing/dev-kmsg): "6,339,5140900,-;NVRM: …", then lines
// with keys, which begin with a blank.
type logRecord struct {
	sequence uint64
	uptime   time.Duration // since the boot, without suspend
	message  string
}

// parseRecord parses one read of /dev/kmsg. It returns false for an invalid
// record and for a record of a program: the facility of such a record is in the
// priority's bits above the third, so no program can imitate the driver.
func parseRecord(data []byte) (r logRecord, ok bool) {
	head, message, found := bytes.Cut(data, []byte(";"))
	fields := bytes.SplitN(head, []byte(","), 4)
	if !found || len(fields) < 3 {
		return logRecord{}, false
	}
	_, err1 := strconv.ParseUint(string(fields[0]), 10, 3)
	sequence, err2 := strconv.ParseUint(string(fields[1]), 10, 64)
	micros, err3 := strconv.ParseUint(string(fields[2]), 10, 50) // at most 35 years
	if err1 != nil || err2 != nil || err3 != nil {
		return logRecord{}, false
	}
	message, _, _ = bytes.Cut(message, []byte("\n"))
	return logRecord{sequence, time.Duration(micros) * time.Microsecond, string(message)}, true
}

package plugin

import "fmt"

// RejectReason is a reason to reject a container, as a label value.
type RejectReason string

// The reasons.
const (
	RejectNoIDs     RejectReason = "empty_request" // request without ids
	RejectUnknown   RejectReason = "unknown"       // id without a listed device
	RejectUnhealthy RejectReason = "unhealthy"
	RejectAllocated RejectReason = "allocated"    // device with an allocation by a different id
	RejectTooMany   RejectReason = "too_many"     // several replicas under Sharing.OnePerContainer
	RejectSameGPU   RejectReason = "same_gpu"     // several replicas of a GPU under preferred.Distinct
	RejectUnusable  RejectReason = "check_failed" // failed check before the start
)

// RejectReasons returns all reasons.
func RejectReasons() []RejectReason {
	return []RejectReason{
		RejectNoIDs, RejectUnknown, RejectUnhealthy, RejectAllocated, RejectTooMany, RejectSameGPU, RejectUnusable,
	}
}

// requestError is a fault of a request.
type requestError struct {
	reason  RejectReason
	message string
}

func rejectf(reason RejectReason, format string, args ...any) requestError {
	return requestError{reason, fmt.Sprintf(format, args...)}
}

package plugin

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

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
	return []RejectReason{RejectNoIDs, RejectUnknown, RejectUnhealthy, RejectAllocated, RejectTooMany, RejectSameGPU, RejectUnusable}
}

// requestError is a fault of a request.
type requestError struct {
	reason  RejectReason
	message string
}

func rejectf(reason RejectReason, format string, args ...any) requestError {
	return requestError{reason, fmt.Sprintf(format, args...)}
}

// reject returns, logs and reports the error of a rejected request; nil without errs. The pod's status shows only the text, so the text
// has all faults. The kubelet sends ids in random order: the reported reason belongs to the first fault in the text.
func (e *endpoint) reject(operation string, ids []device.AdvertisedID, errs []requestError) error {
	if len(errs) == 0 {
		return nil
	}
	slices.SortFunc(errs, func(a, b requestError) int { return strings.Compare(a.message, b.message) })
	messages := make([]string, len(errs))
	for i, err := range errs {
		messages[i] = err.message
	}
	err := fmt.Errorf("cannot %s: %s", operation, strings.Join(slices.Compact(messages), ", "))
	if e.rejections.Allow(operation+" "+messages[0], time.Now()) {
		e.Log.Warn("container rejected", "resource", e.resource, "ids", ids, "err", err)
	}
	e.Hooks.OnRejected(e.resource, ids, errs[0].reason, err)
	return status.Error(codes.FailedPrecondition, err.Error())
}

// rejectionLogInterval is the interval between two messages about the same fault: the kubelet repeats a rejected start every few
// seconds, and a controller replaces a rejected pod.
const rejectionLogInterval = time.Minute

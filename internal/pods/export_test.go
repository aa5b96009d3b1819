package pods

import api "k8s.io/kubelet/pkg/apis/pods/v1alpha1"

// NewWithDial returns a client of a kubelet in a bubble of testing/synctest,
// where sockets would stop the time.
var NewWithDial = newClient

// The limits and intervals of the client.
const (
	MaxContainers   = maxContainers
	MaxLabels       = maxLabels
	MaxNameBytes    = maxNameBytes
	MaxDeletedPods  = maxDeletedPods
	MaxPods         = maxPods
	MaxEndedPods    = maxEndedPods
	MaxBackoff      = maxBackoff
	SyncTimeout     = syncTimeout
	RenewInterval   = renewInterval
	SocketInterval  = socketPollInterval
	DeletedInterval = deletedRetention
)

// DecodePod decodes a kubelet's pod, with these labels.
func DecodePod(b []byte, labels ...string) (Pod, error) {
	if err := ValidateLabels(labels); err != nil {
		return Pod{}, err
	}
	e := watchEvent{allowlist: labels}
	err := e.readEvent(&api.WatchPodsEvent{Type: api.EventType_ADDED, Pod: b})
	return e.pod, err
}

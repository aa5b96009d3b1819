package device

// Policy is what an operator wants of an Xid.
type Policy uint8

// The policies. The zero Policy is what nobody has changed.
const (
	PolicyDefault   Policy = iota // as the Backend's table says
	PolicyIgnore                  // it is counted, and nothing else
	PolicyWarn                    // it is counted and told, and takes nobody's device
	PolicyUnhealthy               // what it hits cannot be used before a reset
)

// apply changes what a report means.
func (p Policy) apply(e *Event) (byPolicy bool) {
	switch p {
	case PolicyIgnore, PolicyWarn:
		e.Recovery = RecoveryNone
	case PolicyUnhealthy:
		byPolicy = e.Recovery != RecoveryAfterReset
		e.Recovery = RecoveryAfterReset
	}
	return byPolicy
}

// policyFor is that of a report.
func (m *Monitor) policyFor(e Event) Policy {
	if m.options.Policy == nil || e.Xid == 0 {
		return PolicyDefault
	}
	return m.options.Policy(e.Xid)
}

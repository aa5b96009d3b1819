package device

// Policy is what an operator wants of an Xid.
type Policy uint8

// The policies. The zero Policy is what nobody has changed.
const (
	ByTable Policy = iota // as the Backend's table says
	Ignore                // it is counted, and nothing else
	Warn                  // it is counted and told, and takes nobody's device
	Condemn               // what it hits cannot be used before a reset
)

// apply changes what a report means.
func (p Policy) apply(e *Event) (byPolicy bool) {
	switch p {
	case Ignore, Warn:
		e.Heals = ByItself
	case Condemn:
		byPolicy = e.Heals != ByReset
		e.Heals = ByReset
	}
	return byPolicy
}

// policy is that of a report.
func (m *Monitor) policy(e Event) Policy {
	if m.Policy == nil || e.Xid == 0 {
		return ByTable
	}
	return m.Policy(e.Xid)
}

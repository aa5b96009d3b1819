package health

import (
	"context"
	"log/slog"
	"time"

	"github.com/podgauge/podgauge/internal/device"
)

// report handles a report of an event at a time.
func (e *engine) report(ev device.Event, at time.Time) {
	g := e.gpus[ev.GPU]
	if g == nil {
		if e.limiter.Allow([3]string{2: reasonOf(ev)}, e.now) {
			e.log.Warn("driver event about an unknown GPU, checking all GPUs", "gpu", ev.GPU, "xid", ev.Xid)
		}
		e.checkAll()
		return
	}
	if ev.PartitionChanged {
		e.log.Info("MIG layout changed", "gpu", ev.GPU)
		e.requestList()
	}
	if ev.Xid == 0 && ev.Kind == "" {
		return
	}
	counter := g.eventCounter(ev)
	e.needSave(saveSoon)
	switch {
	case ev.Historical:
		counter.LastHistorical = latest(counter.LastHistorical, at)
	case !counter.record(ev, at, e.now):
		return
	}
	id, s, affected := g.level(ev.Device)
	policy := e.policy(ev, s)
	if policy == device.PolicyIgnore {
		return
	}
	byPolicy := !ev.Historical && applyPolicy(policy, &ev)
	if e.limiter.Allow([3]string{string(g.gpu), string(ev.Device), counter.reason}, e.now) {
		level := slog.LevelInfo
		if policy == device.PolicyWarn {
			level = slog.LevelWarn
		}
		e.log.Log(context.Background(), level, "driver event", "gpu", ev.GPU, "device", ev.Device,
			"xid", ev.Xid, "kind", ev.Kind, "fatal", ev.Recovery == device.RecoveryAfterReset,
			"action", ev.Action, "count", counter.Count)
	}
	notice := notify{
		At: at, GPU: ev.GPU, Affected: affected, Xid: ev.Xid, Reason: counter.reason, Class: ev.Class,
		Action: ev.Action,
		Source: ev.Source, Historical: ev.Historical,
	}
	switch ev.Recovery {
	case device.RecoveryAfterReset:
		notice.MarkedUnhealthy = e.mark(g, id, s, evidence{cause: Cause{
			Reason: counter.reason, Action: ev.Action, Class: ev.Class, NeedsReset: true, ByPolicy: byPolicy,
			FaultAt: e.now, notedAt: e.now, checksBegun: g.checksBegun,
		}}).newCause
		if s.cause.Reason == counter.reason {
			notice.Action = s.cause.Action
		}
	case device.RecoveryChecksPass:
		e.mark(g, id, s, evidence{kind: evidenceReport})
	}
	e.emit(notice)
	g.checkNow = true // a check may read more about the event
}

// policy returns the policy of a report of a level of a GPU.
func (e *engine) policy(ev device.Event, s *healthState) device.Policy {
	if e.options.Policy == nil || ev.Xid == 0 {
		return device.PolicyDefault
	}
	p := e.options.Policy(ev.Xid)
	if p.Count > 0 && (ev.Historical || !s.reaches(p, ev.Xid, e.now)) {
		return p.Below
	}
	return p.Policy
}

// applyPolicy changes the meaning of a report, and reports whether only the
// policy marks the device unhealthy.
func applyPolicy(p device.Policy, e *device.Event) (byPolicy bool) {
	switch p {
	case device.PolicyDefault:
	case device.PolicyIgnore, device.PolicyWarn:
		e.Recovery = device.RecoveryNone
	case device.PolicyUnhealthy:
		byPolicy = e.Recovery != device.RecoveryAfterReset
		e.Recovery = device.RecoveryAfterReset
	}
	return byPolicy
}

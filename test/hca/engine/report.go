package engine

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Violation is something that a driver must not do.
type Violation struct {
	Device string // Device is the name of the device.
	Rule   string // Rule is a short name of what was broken, the same for each case of it.
	QPN    uint32 // QPN is the QP or SQ that it is about; 0 is none.
	Text   string // Text says what happened, in words and with the WQE if there is one.
}

// maxViolations bounds the list in a report; all of them are counted.
const maxViolations = 200

// Report is what a device has done and seen since it was made.
type Report struct {
	Device     string            // Device is the name of the device.
	Opcodes    map[string]uint64 // Opcodes counts executed send WQEs: "RC SEND".
	Doorbells  map[string]uint64 // Doorbells counts them by kind: "8 bytes", "BlueFlame", "CQ arm", ...
	CQEs       map[string]uint64 // CQEs counts completions by opcode, and errors by syndrome.
	Events     map[string]uint64 // Events counts event queue entries by type.
	Packets    map[string]uint64 // Packets counts sent ones, and dropped ones with the reason.
	Broken     map[string]uint64 // Broken counts violations by rule.
	Forgiven   map[string]uint64 // Forgiven counts those that a test has asked for, by rule.
	Violations []Violation       // Violations are the first of them.
}

// Total is the number of violations.
func (r Report) Total() (n uint64) {
	for _, k := range r.Broken {
		n += k
	}
	return n
}

// report collects what a Report says.
type report struct {
	opcodes, doorbells, cqes, events, packets, broken, forgiven map[string]uint64

	violations []Violation
}

func (r *report) init() {
	for _, m := range []*map[string]uint64{&r.opcodes, &r.doorbells, &r.cqes, &r.events, &r.packets, &r.broken, &r.forgiven} {
		*m = map[string]uint64{}
	}
}

// Report says what the device has done and seen.
func (d *Device) Report() Report {
	d.f.mu.Lock()
	defer d.f.mu.Unlock()
	return Report{
		Device: d.cfg.Name, Opcodes: maps.Clone(d.rep.opcodes), Doorbells: maps.Clone(d.rep.doorbells), CQEs: maps.Clone(d.rep.cqes),
		Events: maps.Clone(d.rep.events), Packets: maps.Clone(d.rep.packets), Broken: maps.Clone(d.rep.broken),
		Forgiven: maps.Clone(d.rep.forgiven), Violations: append([]Violation(nil), d.rep.violations...),
	}
}

// Forgive takes what a test has done on purpose out of the violations, and returns how often a
// rule was broken since the last time.
func (d *Device) Forgive(rule string) uint64 {
	d.f.mu.Lock()
	defer d.f.mu.Unlock()
	n := d.rep.broken[rule]
	delete(d.rep.broken, rule)
	if n > 0 {
		d.rep.forgiven[rule] += n
	}
	d.rep.violations = slices.DeleteFunc(d.rep.violations, func(v Violation) bool { return v.Rule == rule })
	return n
}

// Violate records a violation that the command interface has found.
func (d *Device) Violate(rule, format string, args ...any) {
	d.f.mu.Lock()
	defer d.f.mu.Unlock()
	d.violate(rule, 0, format, args...)
}

// violate records a violation. The rules about reserved bits count only if the device is strict: a card does
// not read these bits, and some programs keep data of their own there.
func (d *Device) violate(rule string, qpn uint32, format string, args ...any) {
	if strings.HasSuffix(rule, "-reserved") && !d.cfg.Strict {
		return
	}
	d.rep.broken[rule]++
	v := Violation{Device: d.cfg.Name, Rule: rule, QPN: qpn, Text: fmt.Sprintf(format, args...)}
	if len(d.rep.violations) < maxViolations {
		d.rep.violations = append(d.rep.violations, v)
	}
	d.trace(TraceEvent{Kind: TraceViolation, QPN: qpn, Violation: &v})
}

// hex is a word and a number.
func hex(s string, n uint32) string { return fmt.Sprintf("%s%#x", s, n) }

package mad

import "fmt"

// Status is the status of a MAD; 0 is success.
type Status uint16

// Status bits. Bits 8 to 14 depend on the class.
const (
	StatusBusy     Status = 1 << 0 // the MAD was discarded
	StatusRedirect Status = 1 << 1 // another agent answers, which ClassPortInfo names
	statusDirected Status = 1 << 15
)

// Values of bits 2 to 4 of a status.
const (
	StatusBadVersion   Status = 1 << 2 // base version or class version not supported
	StatusBadMethod    Status = 2 << 2 // method not supported
	StatusBadAttribute Status = 3 << 2 // method not supported for the attribute
	StatusBadValue     Status = 7 << 2 // attribute or modifier has an invalid value
)

// StatusNoRecords is the status of the subnet administrator if no record equals the request.
const StatusNoRecords Status = 3 << 8

// StatusError is the error of a MAD with a status that is not 0. It is comparable.
type StatusError struct {
	MAD    string // MAD is what the MAD is, such as "SubnGetResp(PortInfo 0x7)".
	Class  Class  // Class is the management class.
	Status Status // Status is the status, without the bit that says that a route is taken backwards.
}

// Error implements error.
func (e *StatusError) Error() string {
	return fmt.Sprintf("mad: %s has status %#x: %s", e.MAD, uint16(e.Status), e.text())
}

// text says what the status means.
func (e *StatusError) text() string {
	if e.Class == ClassSA && e.Status>>8 != 0 {
		names := [...]string{1: "no resources", 2: "invalid request", 3: "no records", 4: "too many records", 5: "invalid GID in the request",
			6: "the request names too few components", 7: "request denied", 8: "another priority suggested"}
		if code := int(e.Status >> 8 & 0x7f); code < len(names) && names[code] != "" {
			return names[code]
		}
	}
	switch e.Status & (7 << 2) {
	case StatusBadVersion:
		return "version not supported"
	case StatusBadMethod:
		return "method not supported"
	case StatusBadAttribute:
		return "attribute not supported with this method"
	case StatusBadValue:
		return "invalid value in the attribute or its modifier"
	}
	switch {
	case e.Status&StatusRedirect != 0:
		return "another agent answers (redirection)"
	case e.Status&StatusBusy != 0:
		return "busy"
	}
	return "unknown"
}

// RMPPType is the type of a packet of a message with several.
type RMPPType uint8

// Types.
const (
	RMPPData  RMPPType = 1
	RMPPAck   RMPPType = 2
	RMPPStop  RMPPType = 3
	RMPPAbort RMPPType = 4
)

// RMPPError is the error of a MAD that ends a message of several packets. It is comparable.
type RMPPError struct {
	MAD    string   // MAD is what the MAD is.
	Type   RMPPType // Type is RMPPStop or RMPPAbort.
	Status uint8    // Status is the RMPP status, which says why.
}

// Error implements error.
func (e *RMPPError) Error() string {
	what := "aborted"
	if e.Type == RMPPStop {
		what = "stopped"
	}
	return fmt.Sprintf("mad: the peer %s the message %s: RMPP status %d (%s)", what, e.MAD, e.Status, rmppText(e.Status))
}

// rmppText says what an RMPPStatus means.
func rmppText(status uint8) string {
	names := [...]string{"total time too long", "inconsistent last segment and payload length", "inconsistent first segment and segment number",
		"invalid type", "window too small", "segment number too large", "invalid status", "version not supported", "too many retries", "unspecified"}
	switch first := uint8(118); {
	case status == 1:
		return "no resources"
	case status >= first && int(status-first) < len(names):
		return names[status-first]
	}
	return "unknown"
}

// Err returns the error that the MAD reports: nil, an [*RMPPError] or a [*StatusError].
func (p *Packet) Err() error {
	if p.rmppActive() && (p.RMPP.Type == RMPPStop || p.RMPP.Type == RMPPAbort) {
		return &RMPPError{MAD: p.String(), Type: p.RMPP.Type, Status: p.RMPP.Status}
	}
	status := p.Status
	if p.Class == ClassSubnDirected {
		status &^= statusDirected
	}
	if status == 0 {
		return nil
	}
	return &StatusError{MAD: p.String(), Class: p.Class, Status: status}
}

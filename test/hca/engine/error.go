package engine

import "fmt"

// Kind says why a command is refused. The names and numbers come from the command interface's
// status (enum MLX5_CMD_STAT_* in the kernel's mlx5/device.h).
type Kind uint8

// The kinds of a refusal.
const (
	BadParam    Kind = 0x03 // a field has a value that it must not have
	BadSysState Kind = 0x04 // the device is stopped
	BadResource Kind = 0x05 // no object has this number
	Busy        Kind = 0x06 // the object is still in use
	Limit       Kind = 0x08 // the device is full
	BadState    Kind = 0x09 // the object's state does not allow it
	BadIndex    Kind = 0x0a // an index is beyond its table
	BadQPState  Kind = 0x10 // the QP's state does not allow it
	BadSize     Kind = 0x40 // completions are left that do not fit the new size
)

// String names the kind as firmware's status is called.
func (k Kind) String() string {
	switch k {
	case BadParam:
		return "bad parameter"
	case BadSysState:
		return "bad system state"
	case BadResource:
		return "bad resource"
	case Busy:
		return "resource busy"
	case Limit:
		return "limit exceeded"
	case BadState:
		return "bad resource state"
	case BadIndex:
		return "bad index"
	case BadQPState:
		return "bad QP state"
	case BadSize:
		return "bad size, outstanding CQEs"
	}
	return fmt.Sprintf("kind %#x", uint8(k))
}

// Error is a refused command.
type Error struct {
	Kind   Kind   // Kind is the status that firmware would answer with.
	Object string // Object is what the command was about: "QP", "CQ", ...
	Number uint32 // Number is the object's number, 0 before it gets one.
	Field  string // Field is the field that was wrong; empty if it isn't a field.
	Reason string // Reason says what was wrong with it.
}

func (e *Error) Error() string {
	s := e.Object
	if e.Number != 0 {
		s += fmt.Sprintf(" %#x", e.Number)
	}
	if e.Field != "" {
		s += ": " + e.Field
	}
	return fmt.Sprintf("%s: %s (%s)", s, e.Reason, e.Kind)
}

// refuse makes an [Error].
func refuse(kind Kind, object string, number uint32, field, format string, args ...any) *Error {
	return &Error{Kind: kind, Object: object, Number: number, Field: field, Reason: fmt.Sprintf(format, args...)}
}

// unknown refuses a number that no object has.
func unknown(object string, number uint32) *Error {
	return refuse(BadResource, object, number, "", "no such object")
}

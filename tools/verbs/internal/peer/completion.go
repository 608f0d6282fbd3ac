package peer

import (
	"context"
	"fmt"

	"github.com/goverbs/goverbs/uverbs"
)

// CheckCompletion returns an error unless a successful completion is of the given operation and, for
// a receive, of as many bytes. No exchange of pingpong and rping has immediate data or invalidates a key.
// The peer chooses what completes a receive, and the bytes of a WRITE with immediate data are not in
// the receive's buffer.
func CheckCompletion(wc *uverbs.WC, want uverbs.WCOpcode, length int) error {
	recv := want == uverbs.WCRecv
	strange := wc.Flags & (uverbs.WCWithImm | uverbs.WCWithInv)
	switch {
	case wc.Opcode == want && (!recv || strange == 0 && int64(wc.ByteLen) == int64(length)):
		return nil
	case !recv:
		return OutOfTurn(wc, ^wc.ID)
	}
	with := ""
	switch {
	case strange&uverbs.WCWithImm != 0:
		with = " with immediate data"
	case strange != 0:
		with = " that invalidates a key"
	}
	return fmt.Errorf("the peer's message is a %s of %d bytes%s, allowed: a SEND of %d bytes", wc.Opcode, wc.ByteLen, with, length)
}

// OutOfTurn is the error for a completion that this side does not wait for. recv is the ID of receives.
func OutOfTurn(wc *uverbs.WC, recv uint64) error {
	why := "which is not pending"
	if wc.ID == recv {
		why = "but the peer has sent before its turn"
	}
	return fmt.Errorf("request %d has completed (%s, %d bytes), %s", wc.ID, wc.Opcode, wc.ByteLen, why)
}

// Cause returns why a context has ended, or else err.
func Cause(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

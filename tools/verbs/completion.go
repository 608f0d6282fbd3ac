package main

import (
	"fmt"

	"github.com/goverbs/goverbs/uverbs"
)

// checkCompletion returns an error unless a successful completion is of the given operation and, for
// a receive, of as many bytes. No exchange of this program has immediate data or invalidates a key.
// The peer chooses what completes a receive, and the bytes of a WRITE with immediate data are not in
// the receive's buffer.
func checkCompletion(wc *uverbs.WC, want uverbs.WCOpcode, length int) error {
	switch {
	case wc.Opcode != want && want == uverbs.WCRecv:
		return fmt.Errorf("the peer has completed a receive with %s, allowed: SEND", wc.Opcode)
	case wc.Opcode != want:
		return fmt.Errorf("the device has completed a %s, posted was a %s", wc.Opcode, want)
	case want != uverbs.WCRecv:
		return nil
	case wc.Flags&uverbs.WCWithImm != 0:
		return fmt.Errorf("the peer's message has immediate data (%#x), allowed: a SEND without", wc.Imm)
	case wc.Flags&uverbs.WCWithInv != 0:
		return fmt.Errorf("the peer's message invalidates key %#x, allowed: a SEND that does not", wc.InvalidatedRKey)
	case int64(wc.ByteLen) != int64(length):
		return fmt.Errorf("the peer's message has %d bytes, allowed: %d", wc.ByteLen, length)
	}
	return nil
}

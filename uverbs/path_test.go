package uverbs

import (
	"errors"
	"os"
	"testing"

	"github.com/goverbs/goverbs/uverbs/ib"
)

func TestQPTypes(t *testing.T) {
	s := QPTypes(1<<ib.RC | 1<<ib.RawPacket)
	for typ, want := range map[ib.QPType]bool{ib.RC: true, ib.UC: false, ib.UD: false, ib.RawPacket: true, 32: false, 255: false} {
		if s.Has(typ) != want {
			t.Errorf("%s: %t", typ, s.Has(typ))
		}
	}
}

// TestDataInOrder: nothing is promised, of what there is.
func TestDataInOrder(t *testing.T) {
	f := newFakeQP(t, QPOptions{})
	for i := range opcodeNames {
		op := WROpcode(i)
		if !op.known() {
			continue
		}
		if got, err := f.qp.DataInOrder(op); got != 0 || err != nil {
			t.Errorf("%s: %d, %v, want 0", op, got, err)
		}
	}
	var arg *ArgError
	if _, err := f.qp.DataInOrder(250); !errors.As(err, &arg) || arg.Field != "op" {
		t.Errorf("an unknown opcode: %v", err)
	}
	must(t, f.qp.Close())
	errorIs(t, second(f.qp.DataInOrder(WRSend)), os.ErrClosed, "after Close")
}

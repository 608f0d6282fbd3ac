package pyverbs

import (
	"strings"
	"testing"

	"github.com/goverbs/goverbs/test/internal/program"
	"github.com/goverbs/goverbs/test/testenv"
)

// eceScript sets options for enhanced connections with libmlx5, one more than the device offers, and prints
// those of the QP after each step.
const eceScript = `
import pyverbs.enums as e
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.pd import PD
from pyverbs.pyverbs_error import PyverbsRDMAError
from pyverbs.qp import ECE, QP, QPAttr, QPCap, QPInitAttr

ctx = Context(name='mlx5_0')
pd, cq = PD(ctx), CQ(ctx, 16)

def new():
    return QP(pd, QPInitAttr(qp_type=e.IBV_QPT_RC, scq=cq, rcq=cq, cap=QPCap(max_send_wr=4, max_recv_wr=4)))

def show(step, qp):
    ece = qp.query_ece()
    print(step, hex(ece.vendor_id), hex(ece.options))

def set(qp, vendor, options):
    try:
        qp.set_ece(ECE(vendor_id=vendor, options=options))
    except PyverbsRDMAError as error:
        print('refused', error.error_code)

one, other = new(), new()
show('new', one)
set(one, 1, 1)
set(one, 0x15b3, one.query_ece().options | 0x20)
show('set', one)
one.to_init(QPAttr(port_num=1))
show('init', one)
other.to_init(QPAttr(port_num=1))
show('other', other)
`

// TestECE checks that the model has for libmlx5 the options that it has for us; see TestECE of the
// conformance tests.
func TestECE(t *testing.T) {
	testenv.Guest(t)
	// EINVAL is 22, EOPNOTSUPP 95. The card drops the option that it does not have.
	want := "new 0x15b3 0x1000000f|refused 22|set 0x15b3 0x0|init 0x15b3 0x1000000f|other 0x15b3 0x1000000f"
	if !testenv.CardIs("ece") {
		want = "new 0x15b3 0x0|refused 22|refused 95|set 0x15b3 0x0|init 0x15b3 0x0|other 0x15b3 0x0"
	}
	out := program.Launch(t, "python3", "-c", eceScript).Wait(t)
	if got := strings.ReplaceAll(strings.TrimSpace(out), "\n", "|"); got != want {
		t.Errorf("libmlx5 has\n%s, want\n%s", got, want)
	}
}

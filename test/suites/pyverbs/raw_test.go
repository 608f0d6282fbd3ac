package pyverbs

import (
	"fmt"
	"net"
	"testing"

	"github.com/goverbs/goverbs/test/internal/program"
	"github.com/goverbs/goverbs/test/testenv"
)

// rawScript sends a frame with a VLAN tag from mlx5_0 to mlx5_1, where a QP of libmlx5 has tags removed, and then frames
// at a limited rate. It prints the tag, the number of bytes that arrived, the type behind the addresses, and how long the
// frames at that rate took.
const rawScript = `
import sys, time
import pyverbs.enums as e
from pyverbs.cq import CQ, CQEX, CqInitAttrEx, PollCqAttr
from pyverbs.device import Context
from pyverbs.flow import Flow, FlowAttr
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr, QPInitAttrEx
from pyverbs.spec import EthSpec
from pyverbs.wr import SGE, RecvWR, SendWR

mac = sys.argv[1]
cap = QPCap(max_send_wr=16, max_recv_wr=16)

def move(qp, state, mask=0, **attrs):
    attr = QPAttr(qp_state=state, port_num=1)
    for name, value in attrs.items():
        setattr(attr, name, value)
    qp.modify(attr, e.IBV_QP_STATE | mask)

here = Context(name='mlx5_0')
pd = PD(here)
mr = MR(pd, 4096, e.IBV_ACCESS_LOCAL_WRITE)
cq = CQ(here, 16)
qp = QP(pd, QPInitAttr(qp_type=e.IBV_QPT_RAW_PACKET, scq=cq, rcq=cq, cap=cap))
move(qp, e.IBV_QPS_INIT, e.IBV_QP_PORT)
move(qp, e.IBV_QPS_RTR)
move(qp, e.IBV_QPS_RTS)

there = Context(name='mlx5_1')
pd2 = PD(there)
mr2 = MR(pd2, 4096, e.IBV_ACCESS_LOCAL_WRITE)
cq2 = CQEX(there, CqInitAttrEx(cqe=16, wc_flags=e.IBV_WC_EX_WITH_CVLAN | e.IBV_WC_EX_WITH_BYTE_LEN))
qp2 = QP(there, QPInitAttrEx(qp_type=e.IBV_QPT_RAW_PACKET, scq=cq2, rcq=cq2, cap=cap, pd=pd2,
    create_flags=e.IBV_QP_CREATE_CVLAN_STRIPPING, comp_mask=e.IBV_QP_INIT_ATTR_PD | e.IBV_QP_INIT_ATTR_CREATE_FLAGS))
move(qp2, e.IBV_QPS_INIT, e.IBV_QP_PORT)
move(qp2, e.IBV_QPS_RTR)
spec = EthSpec(dst_mac=mac, dst_mac_mask='ff:ff:ff:ff:ff:ff')
attr = FlowAttr(num_of_specs=1, port=1)
attr.specs.append(spec)
flow = Flow(qp2, attr)
qp2.post_recv(RecvWR(num_sge=1, sg=[SGE(mr2.buf, 4096, mr2.lkey)]))

def send(frame, count=1):
    mr.write(frame, len(frame))
    for _ in range(count):
        qp.post_send(SendWR(num_sge=1, sg=[SGE(mr.buf, len(frame), mr.lkey)]))
    while count > 0:
        n, wcs = cq.poll()
        for wc in wcs:
            if wc.status != e.IBV_WC_SUCCESS:
                sys.exit('send: status %d' % wc.status)
        count -= n

addrs = bytes.fromhex(mac.replace(':', '')) + bytes.fromhex('02600d090909')
send(addrs + bytes.fromhex('8100600588b5') + bytes(100))
while cq2.start_poll(PollCqAttr()) == 2: # ENOENT
    pass
print('tag %#x, %d bytes, type %s' % (cq2.read_cvlan(), cq2.read_byte_len(), mr2.read(2, 12).hex()))
cq2.end_poll()

move(qp, e.IBV_QPS_RTS, e.IBV_QP_RATE_LIMIT, rate_limit=400)
begin = time.monotonic()
send(addrs + bytes.fromhex('88b5') + bytes(986), 10)
print('%.3f' % (time.monotonic() - begin))
`

// TestRaw checks that libmlx5 finds in the model what we find in it, of VLAN tags and of rates; see TestStripVLAN and
// TestRateLimit of the conformance tests.
func TestRaw(t *testing.T) {
	testenv.Guest(t)
	testenv.NeedsRoCE(t, "Ethernet")
	second, err := net.InterfaceByName(testenv.TheRig().Netdevs[1])
	must(t, err)
	out := program.Launch(t, "python3", "-c", rawScript, second.HardwareAddr.String()).Wait(t)
	var tag, n int
	var kind string
	var took float64
	if _, err := fmt.Sscanf(out, "tag 0x%x, %d bytes, type %4s\n%f", &tag, &n, &kind, &took); err != nil {
		t.Fatalf("%v in %q", err, out)
	}
	if tag != 0x6005 || n != 114 || kind != "88b5" {
		t.Errorf("libmlx5 has tag %#x, %d bytes of type %s, want 0x6005, 114 of 88b5", tag, n, kind)
	}
	if least := 9 * 1000 * 8 / 400e3; took < least {
		t.Errorf("10 frames of 1000 bytes at 400 kbit/s took %.3f s, want %.3f at least", took, least)
	}
	t.Logf("tag %#x, %.3f s", tag, took)
}

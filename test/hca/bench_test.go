package hca

import (
	"fmt"
	"strings"
	"testing"

	"github.com/goverbs/goverbs/test/hca/prm"
)

// bench gives a command as the guest does, with stores of one and of eight bytes.
func (v *driver) bench(text string) string {
	v.t.Helper()
	for i := 0; i < len(text); i += 8 {
		v.d.WriteBAR(0, benchOffset+benchText+uint64(i), []byte(text[i:min(i+8, len(text))]))
	}
	v.d.WriteBAR(0, benchOffset+1, []byte{byte(len(text))})
	v.d.WriteBAR(0, benchOffset+2, []byte{byte(len(text) >> 8)})
	v.d.WriteBAR(0, benchOffset, []byte{1})
	var head [8]byte
	v.d.ReadBAR(0, benchOffset, head[:])
	answer := make([]byte, int(head[1])|int(head[2])<<8)
	v.d.ReadBAR(0, benchOffset+benchText, answer)
	return string(answer)
}

func TestBench(t *testing.T) {
	v := newVerbs(t, IB)
	cqn, _, _ := v.newCQ(v.u, v.eqn)
	qpn := v.create(prm.CreateQP, v.qpIn(prm.STRC, cqn, v.page(), v.page()))
	v.rts(qpn, qpn)
	for text, want := range map[string]string{
		"fail-command ALLOC_XRCD 8 0x123 0 1": "ok", "violations": "0", "command CREATE_QP": "1", "fabric 0.5 0 1ms": "ok",
		"packets drop 0x45 1 2": "ok", "link down": "ok",
		"": "error: no command", "nonsense": `error: command "nonsense" is not known`, "link": "error: link takes 1 arguments, not 0",
		"link sideways": `error: "sideways" is none of up, down`, "fail-command NO_SUCH 1 1 0 1": `error: "NO_SUCH" is no command of the card`,
		"fabric 2 0 0s": "error: 2 is not from 0 to 1", "fail-qp 0x999": "error: QP 0x999: no such object", "fail-wqe 1 up 0 1 1": `error: "up" is none of send, recv`,
		"lid 9": "ok", "pkey 5 0x8123": "ok", "gid 3 fe80::9": "ok", "gid 3 ::": "ok", "reregister": "ok", "fail-migration 9": "error: QP 0x9: no such object",
		"fail-rq 9":  "error: RQ 0x9: no such object",
		"pkey 128 1": "error: 128 is not below 128", "gid 64 ::1": "error: 64 is not below 64", "gid 1 nonsense": "error: ParseAddr",
		"fail-srq x": `error: strconv.ParseUint: parsing "x": invalid syntax`, "packets drop 0 0 -1": `error: strconv.ParseUint: parsing "-1": invalid syntax`,
	} {
		if got := v.bench(text); !strings.HasPrefix(got, want) {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
	v.refused(prm.LimitErr, prm.AllocXRCD, 0, v.in(small), small)
	v.must(prm.AllocXRCD, 0, v.in(small), small)
	if p := v.d.eng.Port(); p.Up() {
		t.Error("the link is up")
	}
	if got := v.bench("fail-qp " + fmt.Sprintf("%#x", qpn)); got != "ok" {
		t.Errorf("%q", got)
	}
	v.fabric.Run(100)
	if x := v.must(prm.QueryQP, 0, v.object(qpn), list)[prm.QPCtx:]; prm.QPCState.Get(x) != prm.QPStateERR {
		t.Errorf("the QP is in state %d", prm.QPCState.Get(x))
	}
	v.violations(0)

	// The text's end and the area's.
	v.d.WriteBAR(0, benchOffset+1, []byte{0xff, 0xff})
	v.d.WriteBAR(0, benchOffset, []byte{1})
	v.d.ReadBAR(0, benchOffset+benchSize-1, make([]byte, 1))
	v.d.ReadBAR(0, benchOffset+benchSize-4, make([]byte, 8))
	v.violations(0)
	v.d.WriteBAR(0, benchOffset+benchSize-4, make([]byte, 8))
	v.violations(1)

	if v.bench("fatal") != "ok" || v.load(segHealth+healthSeverity) == 0 || v.bench("well") != "ok" || v.load(segHealth+healthSeverity) != 0 {
		t.Error("a card that dies and comes back")
	}
}

// TestBenchPort: each change of a subnet manager is in the tables and raises an event; RoCE has no
// subnet manager.
func TestBenchPort(t *testing.T) {
	v := newVerbs(t, IB)
	before := v.d.Report().Engine.Events["PORT_CHANGE"]
	for _, text := range []string{"lid 0x99", "pkey 1 0x8123", "gid 2 fe80::9", "reregister"} {
		if got := v.bench(text); got != "ok" {
			t.Errorf("%q: %q", text, got)
		}
	}
	if p := v.d.eng.Port(); p.LID != 0x99 || p.PKeys[1] != 0x8123 || p.GIDs[2].Invalid || p.GIDs[2].Addr[15] != 9 {
		t.Errorf("the port is %+v", p)
	}
	if n := v.d.Report().Engine.Events["PORT_CHANGE"] - before; n != 4 {
		t.Errorf("%d events of the port, want 4", n)
	}
	if got := newVerbs(t, RoCE).bench("lid 1"); !strings.Contains(got, "no subnet manager") {
		t.Errorf("RoCE: %q", got)
	}
}

package uverbs

import (
	"bytes"
	"embed"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/goverbs/goverbs/uverbs/internal/abi"
	"github.com/goverbs/goverbs/uverbs/internal/kernel"
)

// The files in testdata/golden hold what rdma-core's programs told the kernel, recorded
// from their memory by test/abitrace (make golden). The tests here do the same through
// the library and compare, command by command and byte by byte.

// goldenCommand is a command of a golden file, or of ours in the same form.
type goldenCommand struct {
	Call   string
	Object uint16
	Method uint16
	Driver uint32
	Attrs  []goldenAttr
	Errno  string

	Request hexBytes
}

// goldenAttr is an attribute.
type goldenAttr struct {
	ID    uint16
	Len   uint16
	Flags uint16
	Enum  uint16
	Data  hexBytes // the word of the attribute
	In    hexBytes // what it points to, if that is more than 8 bytes
}

// hexBytes are bytes that JSON has in hex.
type hexBytes []byte

// UnmarshalJSON implements [json.Unmarshaler].
func (h *hexBytes) UnmarshalJSON(b []byte) (err error) {
	var s string
	if err := json.Unmarshal(b, &s); err != nil {
		return err
	}
	*h, err = hex.DecodeString(s)
	return err
}

// key names what a command does, whatever the way by which it goes.
func (c *goldenCommand) key() string {
	switch {
	case c.Call == "write":
		return "write " + fakeVerbs[binary.LittleEndian.Uint32(c.Request)].name
	case c.Object == abi.UVERBS_OBJECT_DEVICE && c.Method == abi.UVERBS_METHOD_INVOKE_WRITE:
		return "invoke " + fakeVerbs[binary.LittleEndian.Uint32(c.attr(abi.UVERBS_ATTR_WRITE_CMD).Data)].name
	}
	return "ioctl " + fakeMethods[[2]uint16{c.Object, c.Method}]
}

// attr returns an attribute, or an empty one.
func (c *goldenCommand) attr(id uint16) *goldenAttr {
	for i := range c.Attrs {
		if c.Attrs[i].ID == id {
			return &c.Attrs[i]
		}
	}
	return &goldenAttr{Data: make([]byte, 8)}
}

// goldenFiles are embedded, so that the tests find them in a guest as well.
//
//go:embed testdata/golden/*.txt
var goldenFiles embed.FS

// readGolden reads a golden file: the commands that succeeded, and the comment.
func readGolden(t *testing.T, name string) ([]goldenCommand, string) {
	t.Helper()
	text := string(value(goldenFiles.ReadFile("testdata/golden/" + name + ".txt"))(t))
	var all []goldenCommand
	var comment strings.Builder
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "#") {
			comment.WriteString(line)
			continue
		}
		var c goldenCommand
		if err := json.Unmarshal([]byte(line), &c); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if c.Errno == "" { // others asked what the kernel can do
			all = append(all, c)
		}
	}
	return all, comment.String()
}

// see converts a command of ours.
func see(cmd *kernel.Command, byWrite bool) goldenCommand {
	if l, _ := cmd.Legacy(); byWrite {
		return goldenCommand{Call: "write", Request: l.Request(0)}
	}
	c := goldenCommand{Call: "ioctl", Object: cmd.Object, Method: cmd.Method, Driver: abi.RDMA_DRIVER_RXE}
	for _, a := range cmd.Attrs() {
		g := goldenAttr{ID: a.ID, Len: a.Len, Flags: a.Flags, Enum: uint16(a.Enum), Data: u64(a.Data)}
		if a.Len > 8 {
			g.In = slices.Concat(a.In, a.Out)
		}
		c.Attrs = append(c.Attrs, g)
	}
	return c
}

// span is a range of bytes that is not compared, from one to before the other.
type span struct{ from, to int }

// varies are the parts of commands that differ from run to run, or from library to
// library with a reason. What is written has the header's 8 bytes before the rest.
var varies = map[string][]span{
	"REG_MR":              {{8, 16}, {24, 32}}, // start and hca_va: where the memory is
	"CREATE_CQ":           {{8, 16}, {24, 28}}, // user_handle; the channel's descriptor
	"CREATE_QP":           {{8, 16}},           // user_handle, of which rdma-core makes a pointer
	"CREATE_AH":           {{8, 16}},
	"CREATE_SRQ":          {{8, 16}},
	"POST_SEND":           {{20, 24}}, // wqe_size, of a work request that is not there
	"ioctl CREATE_CQ 2":   {{0, 8}},   // UVERBS_ATTR_CREATE_CQ_USER_HANDLE
	"ioctl CREATE_CQ 3":   {{0, 8}},   // UVERBS_ATTR_CREATE_CQ_COMP_CHANNEL, a descriptor
	"ioctl CREATE_CQ 7":   {{0, 8}},   // UVERBS_ATTR_CREATE_CQ_EVENT_FD, a descriptor
	"ioctl CREATE_QP 7":   {{0, 8}},   // UVERBS_ATTR_CREATE_QP_USER_HANDLE
	"ioctl CREATE_CQ 6":   {{0, 8}},   // UVERBS_ATTR_CREATE_CQ_RESP_CQE: an address, like those that follow
	"ioctl CREATE_QP 12":  {{0, 8}},   // UVERBS_ATTR_CREATE_QP_EVENT_FD, a descriptor
	"ioctl CREATE_QP 14":  {{0, 8}},   // UVERBS_ATTR_CREATE_QP_RESP_QP_NUM
	"ioctl DESTROY_CQ 1":  {{0, 8}},   // UVERBS_ATTR_DESTROY_CQ_RESP
	"ioctl CREATE_SRQ 4":  {{0, 8}},   // UVERBS_ATTR_CREATE_SRQ_USER_HANDLE
	"ioctl CREATE_SRQ 10": {{0, 8}},   // UVERBS_ATTR_CREATE_SRQ_EVENT_FD, a descriptor
	"ioctl CREATE_SRQ 11": {{0, 8}},   // UVERBS_ATTR_CREATE_SRQ_RESP_MAX_WR
	"ioctl CREATE_SRQ 12": {{0, 8}},   // UVERBS_ATTR_CREATE_SRQ_RESP_MAX_SGE
	"ioctl DESTROY_SRQ 1": {{0, 8}},   // UVERBS_ATTR_DESTROY_SRQ_RESP
	"ioctl DESTROY_QP 1":  {{0, 8}},   // UVERBS_ATTR_DESTROY_QP_RESP
	"ioctl GET_CONTEXT 0": {
		{0, 8}, // UVERBS_ATTR_GET_CONTEXT_NUM_COMP_VECTORS
	},
	"ioctl GET_CONTEXT 1": {{0, 8}}, // UVERBS_ATTR_GET_CONTEXT_CORE_SUPPORT
}

// mask overwrites what is not compared.
func mask(b []byte, spans []span) []byte {
	b = slices.Clone(b)
	for _, s := range spans {
		if s.from < len(b) {
			clear(b[s.from:min(s.to, len(b))])
		}
	}
	return b
}

// diff says where a command of ours differs from rdma-core's, or returns "".
func diff(ours, golden *goldenCommand) string {
	key := golden.key()
	_, verb, _ := strings.Cut(key, " ")
	core := varies[verb]
	if golden.Call == "write" {
		spans := []span{}
		if binary.LittleEndian.Uint16(golden.Request[6:]) > 0 {
			spans = append(spans, span{8, 16}) // response, or that of the extended header
		}
		for _, s := range core {
			spans = append(spans, span{s.from + 8, s.to + 8})
		}
		if a, b := mask(ours.Request, spans), mask(golden.Request, spans); !bytes.Equal(a, b) {
			return fmt.Sprintf("%x, want %x", a, b)
		}
		return ""
	}
	if ours.Driver != golden.Driver {
		return fmt.Sprintf("driver %d, want %d", ours.Driver, golden.Driver)
	}
	var ids, want []uint16
	for _, a := range ours.Attrs {
		ids = append(ids, a.ID)
	}
	for _, a := range golden.Attrs {
		want = append(want, a.ID)
	}
	slices.Sort(ids)
	slices.Sort(want)
	if !slices.Equal(ids, want) {
		return fmt.Sprintf("attributes %d, want %d", ids, want)
	}
	for _, id := range ids {
		a, g := ours.attr(id), golden.attr(id)
		// Whether an attribute must be understood is the caller's choice.
		if a.Len != g.Len || a.Flags|abi.UVERBS_ATTR_F_MANDATORY != g.Flags|abi.UVERBS_ATTR_F_MANDATORY || a.Enum != g.Enum {
			return fmt.Sprintf("attribute %d: %+v, want %+v", id, a, g)
		}
		have, should := a.Data, g.Data
		spans := varies[fmt.Sprint(key, " ", id)]
		if strings.HasPrefix(key, "invoke ") && id == abi.UVERBS_ATTR_CORE_IN {
			spans = core
			if golden.attr(abi.UVERBS_ATTR_CORE_OUT).Len > 0 {
				// rdma-core leaves write()'s address of the response where it was.
				spans = append([]span{{0, 8}}, core...)
			}
		}
		if a.Len > 8 {
			have, should = a.In, g.In
		}
		if goldenOutputs[id] && strings.HasPrefix(key, "invoke ") || a.Len > 8 && isOutput(key, id) {
			continue // where the answer goes
		}
		if x, y := mask(have, spans), mask(should, spans); !bytes.Equal(x, y) {
			return fmt.Sprintf("attribute %d: %x, want %x", id, x, y)
		}
	}
	return ""
}

// goldenOutputs are the attributes of INVOKE_WRITE that hold answers.
var goldenOutputs = map[uint16]bool{abi.UVERBS_ATTR_CORE_OUT: true, abi.UVERBS_ATTR_UHW_OUT: true}

// isOutput reports whether an attribute of more than 8 bytes holds an answer.
func isOutput(key string, id uint16) bool {
	switch key {
	case "ioctl CREATE_QP":
		return id == abi.UVERBS_ATTR_CREATE_QP_RESP_CAP || id == abi.UVERBS_ATTR_UHW_OUT
	case "ioctl CREATE_CQ", "ioctl CREATE_SRQ":
		return id == abi.UVERBS_ATTR_UHW_OUT
	case "ioctl QUERY_GID_ENTRY":
		return id == abi.UVERBS_ATTR_QUERY_GID_ENTRY_RESP_ENTRY
	case "ioctl QUERY_PORT":
		return id == abi.UVERBS_ATTR_QUERY_PORT_RESP
	}
	return false
}

// compareGolden compares all commands of a run: for every command of ours there is one of
// rdma-core's of the same kind, in the same order within that kind, that says the same.
// It returns the kinds that were compared.
func compareGolden(t *testing.T, ours, golden []goldenCommand, except ...string) []string {
	t.Helper()
	var seen []string
	for i := range ours {
		key := ours[i].key()
		if slices.Contains(except, key) {
			continue
		}
		n := slices.IndexFunc(golden, func(g goldenCommand) bool { return g.key() == key })
		if n < 0 {
			t.Errorf("rdma-core has no (or no further) %s", key)
			continue
		}
		if d := diff(&ours[i], &golden[n]); d != "" {
			t.Errorf("%s: %s", key, d)
		}
		golden = slices.Delete(golden, n, n+1)
		seen = append(seen, key)
	}
	return seen
}

// goldenPaths are the ways of giving commands for which there are golden files.
var goldenPaths = map[string]abiPath{"ioctl": pathIoctl, "write": pathWrite}

// goldenGame is what the ping-pongs have in common.
type goldenGame struct {
	*testing.T
	dev  *Device
	pd   *PD
	mr   *MR
	cq   *CQ
	peer []Endpoint // the other side's
	psn  []uint32   // of this side
}

// playGolden compares the commands of a ping-pong, by both ways, with those of play, which
// is given a device with a PD, an MR of size bytes and a CQ. It names the commands that
// are compared beside those.
func playGolden(t *testing.T, program string, size, cqe int, event bool, play func(g *goldenGame) []*fastCommand, want ...string) {
	for way, path := range goldenPaths {
		t.Run(way, func(t *testing.T) {
			golden, comment := readGolden(t, program+"_"+way)
			var ours []goldenCommand
			d, _, err := openFake(t, path, func(k *fakeKernel) {
				k.seen = func(c *kernel.Command, byWrite bool) { ours = append(ours, see(c, byWrite)) }
				k.next = ^uint32(0) // handles start at 0, as in the kernel
				k.ahNum = 1
			})
			must(t, err)
			g := &goldenGame{T: t, dev: d, pd: value(d.AllocPD())(t)}
			g.peer, _ = goldenSide(t, comment, "remote")
			_, g.psn = goldenSide(t, comment, "local")
			o := CQOptions{MaxCQE: cqe}
			if event {
				o.Channel = value(d.CreateCompChannel())(t)
			}
			buf := value(AllocBuffer(size))(t)
			g.mr = value(g.pd.RegMR(buf, AccessLocalWrite))(t)
			g.cq = value(d.CreateCQ(o))(t)
			fast := play(g)
			ours = append(ours, fastCommands(path, fast)...)
			must(t, g.cq.Close(), g.mr.Close(), buf.Close(), g.pd.Close())

			// No ping-pong asks what the device can do.
			seen := compareGolden(t, ours, golden, "invoke EX_QUERY_DEVICE", "write EX_QUERY_DEVICE", "ioctl GET_CONTEXT")
			for _, verb := range append([]string{"ALLOC_PD", "REG_MR", "CREATE_CQ", "DESTROY_CQ", "DEREG_MR", "DEALLOC_PD"}, want...) {
				if !slices.ContainsFunc(seen, func(s string) bool { return strings.HasSuffix(s, " "+verb) }) {
					t.Errorf("%s was not compared, only %s", verb, strings.Join(seen, ", "))
				}
			}
		})
	}
}

// goldenSide finds the endpoints of a side in a golden file's comment.
func goldenSide(t *testing.T, comment, side string) (ends []Endpoint, psns []uint32) {
	t.Helper()
	form := regexp.MustCompile(side + ` address: +LID 0x0000, QPN 0x(\w+), PSN 0x(\w+)[,:] GID (\S+)`)
	for _, m := range form.FindAllStringSubmatch(comment, -1) {
		e := Endpoint{
			QPN: uint32(value(strconv.ParseUint(m[1], 16, 24))(t)),
			PSN: uint32(value(strconv.ParseUint(m[2], 16, 24))(t)),
			GID: value(ParseGID(m[3]))(t),
		}
		ends, psns = append(ends, e), append(psns, e.PSN)
	}
	if len(ends) == 0 {
		t.Fatalf("no %s address in the golden file", side)
	}
	return ends, psns
}

// connect does what the connected ping-pongs do, with their attributes.
func (g *goldenGame) connect(q *QP, i int) {
	g.Helper()
	rtr := QPAttr{
		State: QPRTR, PathMTU: MTU1024, DestQPN: g.peer[i].QPN, RQPSN: g.peer[i].PSN,
		AH: AHAttr{Global: true, Port: 1, GRH: GRH{DGID: g.peer[i].GID, HopLimit: 1, SGIDIndex: 1}},
	}
	rtrMask := AttrState | AttrAV | AttrPathMTU | AttrDestQPN | AttrRQPSN
	rts := QPAttr{State: QPRTS, SQPSN: g.psn[i]}
	rtsMask := AttrState | AttrSQPSN
	if q.typ == RC {
		rtr.MaxDestRdAtomic, rtr.MinRNRTimer = 1, 12
		rtrMask |= AttrMaxDestRdAtomic | AttrMinRNRTimer
		rts.Timeout, rts.RetryCount, rts.RNRRetry, rts.MaxRdAtomic = 14, 7, 7, 1
		rtsMask |= AttrTimeout | AttrRetryCount | AttrRNRRetry | AttrMaxRdAtomic
	}
	must(g, q.Modify(rtr, rtrMask), q.Modify(rts, rtsMask))
}

// TestGoldenRC does what ibv_rc_pingpong -e does.
func TestGoldenRC(t *testing.T) {
	playGolden(t, "rc_pingpong", 64, 501, true, func(g *goldenGame) []*fastCommand {
		qp := value(g.pd.CreateQP(QPOptions{SendCQ: g.cq, RecvCQ: g.cq, MaxSendWR: 1, MaxRecvWR: 500}))(g)
		value(g.dev.QueryPort(1))(g)
		must(g, qp.Modify(QPAttr{State: QPInit, Port: 1}, AttrState|AttrPKeyIndex|AttrPort|AttrAccess))
		g.connect(qp, 0)
		fast := []*fastCommand{&g.cq.rxe.arm[0], &qp.doorbell}
		must(g, qp.Close())
		return fast
	}, "CREATE_COMP_CHANNEL", "CREATE_QP", "MODIFY_QP", "QUERY_PORT", "REQ_NOTIFY_CQ", "POST_SEND", "DESTROY_QP")
}

// TestGoldenUC does what ibv_uc_pingpong does.
func TestGoldenUC(t *testing.T) {
	playGolden(t, "uc_pingpong", 64, 501, false, func(g *goldenGame) []*fastCommand {
		qp := value(g.pd.CreateQP(QPOptions{Type: UC, SendCQ: g.cq, RecvCQ: g.cq, MaxSendWR: 1, MaxRecvWR: 500}))(g)
		must(g, qp.Modify(QPAttr{State: QPInit, Port: 1}, AttrState|AttrPKeyIndex|AttrPort|AttrAccess))
		g.connect(qp, 0)
		must(g, qp.Close())
		return nil
	}, "CREATE_QP", "MODIFY_QP")
}

// TestGoldenUD does what ibv_ud_pingpong does.
func TestGoldenUD(t *testing.T) {
	playGolden(t, "ud_pingpong", 64+GRHSize, 501, false, func(g *goldenGame) []*fastCommand {
		qp := value(g.pd.CreateQP(QPOptions{Type: UD, SendCQ: g.cq, RecvCQ: g.cq, MaxSendWR: 1, MaxRecvWR: 500}))(g)
		must(g,
			qp.Modify(QPAttr{State: QPInit, Port: 1, QKey: 0x11111111}, AttrState|AttrPKeyIndex|AttrPort|AttrQKey),
			qp.Modify(QPAttr{State: QPRTR}, AttrState),
			qp.Modify(QPAttr{State: QPRTS, SQPSN: g.psn[0]}, AttrState|AttrSQPSN),
		)
		ah := value(g.pd.CreateAH(AHAttr{Port: 1, Global: true, GRH: GRH{DGID: g.peer[0].GID, SGIDIndex: 1, HopLimit: 1}}))(g)
		must(g, ah.Close(), qp.Close())
		return nil
	}, "CREATE_QP", "MODIFY_QP", "CREATE_AH", "DESTROY_AH")
}

// TestGoldenSRQ does what ibv_srq_pingpong does with two QPs.
func TestGoldenSRQ(t *testing.T) {
	playGolden(t, "srq_pingpong", 64, 502, false, func(g *goldenGame) []*fastCommand {
		srq := value(g.pd.CreateSRQ(SRQOptions{MaxWR: 500}))(g)
		var qps [2]*QP
		for i := range qps {
			qps[i] = value(g.pd.CreateQP(QPOptions{SendCQ: g.cq, RecvCQ: g.cq, SRQ: srq, MaxSendWR: 1}))(g)
		}
		for _, q := range qps {
			must(g, q.Modify(QPAttr{State: QPInit, Port: 1}, AttrState|AttrPKeyIndex|AttrPort|AttrAccess))
		}
		for i, q := range qps {
			g.connect(q, i)
		}
		must(g, qps[0].Close(), qps[1].Close(), srq.Close())
		return nil
	}, "CREATE_SRQ", "CREATE_QP", "MODIFY_QP", "DESTROY_SRQ")
}

// fastCommands returns the commands that do not pass through Do: rdma-core arms a CQ on the path of
// other commands, and always rings the doorbell with write().
func fastCommands(path abiPath, all []*fastCommand) []goldenCommand {
	var seen []goldenCommand
	for _, f := range all {
		if c := see(f.Command(), false); path == pathIoctl && c.key() != "invoke POST_SEND" {
			seen = append(seen, c)
			continue
		}
		seen = append(seen, goldenCommand{Call: "write", Request: slices.Clone(f.Request())})
	}
	return seen
}

// TestGoldenDevinfo does what ibv_devinfo does.
func TestGoldenDevinfo(t *testing.T) {
	for _, test := range []struct {
		file string
		path abiPath
		want string
	}{
		{"devinfo_ioctl", pathIoctl, "ioctl GET_CONTEXT, ioctl ASYNC_EVENT_ALLOC, invoke EX_QUERY_DEVICE, ioctl QUERY_PORT"},
		{"devinfo_write", pathWrite, "write GET_CONTEXT, write EX_QUERY_DEVICE, write QUERY_PORT"},
	} {
		t.Run(test.file, func(t *testing.T) {
			golden, _ := readGolden(t, test.file)
			var ours []goldenCommand
			d, _, err := openFake(t, test.path, func(k *fakeKernel) {
				k.seen = func(c *kernel.Command, byWrite bool) { ours = append(ours, see(c, byWrite)) }
			})
			must(t, err)
			value(d.QueryPort(1))(t)
			if seen := strings.Join(compareGolden(t, ours, golden), ", "); seen != test.want {
				t.Errorf("compared %s, want %s", seen, test.want)
			}
		})
	}
}

// TestGoldenDiff: each byte of a command counts that is not an address.
func TestGoldenDiff(t *testing.T) {
	for _, file := range []string{"rc_pingpong_ioctl", "rc_pingpong_write"} {
		golden, _ := readGolden(t, file)
		g := golden[slices.IndexFunc(golden, func(g goldenCommand) bool { return strings.HasSuffix(g.key(), " MODIFY_QP") })]
		cmd := g.Request
		if g.Call == "ioctl" {
			cmd = g.attr(abi.UVERBS_ATTR_CORE_IN).In
		}
		if len(cmd) < 112 {
			t.Fatalf("%s: MODIFY_QP has %d bytes", file, len(cmd))
		}
		for i := range cmd {
			other, _ := readGolden(t, file)
			o := other[slices.IndexFunc(other, func(o goldenCommand) bool { return o.key() == g.key() })]
			if cmd[i] ^= 1; diff(&o, &g) == "" {
				t.Errorf("%s: byte %d of MODIFY_QP is another, and no difference is seen", file, i)
			}
			cmd[i] ^= 1
		}
	}
}

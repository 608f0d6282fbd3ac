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
func (k *fakeKernel) see(cmd *ioctlCommand, write []byte) goldenCommand {
	if cmd == nil {
		return goldenCommand{Call: "write", Request: slices.Clone(write)}
	}
	c := goldenCommand{Call: "ioctl", Object: cmd.wire.hdr.ObjectID, Method: cmd.wire.hdr.MethodID, Driver: cmd.wire.hdr.DriverID}
	for _, a := range cmd.wire.attrs[:cmd.n] {
		g := goldenAttr{ID: a.AttrID, Len: a.Len, Flags: a.Flags, Enum: binary.LittleEndian.Uint16(bytesOf(&a)[6:]), Data: u64(a.Data)}
		if a.Len > 8 {
			g.In = k.input(&a)
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
	"REG_MR":             {{8, 16}, {24, 32}}, // start and hca_va: where the memory is
	"CREATE_CQ":          {{8, 16}, {24, 28}}, // user_handle; the channel's descriptor
	"CREATE_QP":          {{8, 16}},           // user_handle, of which rdma-core makes a pointer
	"POST_SEND":          {{20, 24}},          // wqe_size, of a work request that is not there
	"ioctl CREATE_CQ 2":  {{0, 8}},            // UVERBS_ATTR_CREATE_CQ_USER_HANDLE
	"ioctl CREATE_CQ 3":  {{0, 8}},            // UVERBS_ATTR_CREATE_CQ_COMP_CHANNEL, a descriptor
	"ioctl CREATE_CQ 7":  {{0, 8}},            // UVERBS_ATTR_CREATE_CQ_EVENT_FD, a descriptor
	"ioctl CREATE_QP 7":  {{0, 8}},            // UVERBS_ATTR_CREATE_QP_USER_HANDLE
	"ioctl CREATE_CQ 6":  {{0, 8}},            // UVERBS_ATTR_CREATE_CQ_RESP_CQE: an address, like those that follow
	"ioctl CREATE_QP 12": {{0, 8}},            // UVERBS_ATTR_CREATE_QP_EVENT_FD, a descriptor
	"ioctl CREATE_QP 14": {{0, 8}},            // UVERBS_ATTR_CREATE_QP_RESP_QP_NUM
	"ioctl DESTROY_CQ 1": {{0, 8}},            // UVERBS_ATTR_DESTROY_CQ_RESP
	"ioctl DESTROY_QP 1": {{0, 8}},            // UVERBS_ATTR_DESTROY_QP_RESP
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
	case "ioctl CREATE_CQ":
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

// goldenPeer finds a side of the connection in a golden file's comment.
func goldenPeer(t *testing.T, comment, side string) (qpn, psn uint32, gid GID) {
	t.Helper()
	m := regexp.MustCompile(side + ` address: +LID 0x0000, QPN 0x(\w+), PSN 0x(\w+), GID (\S+)`).FindStringSubmatch(comment)
	if m == nil {
		t.Fatalf("no %s address in the golden file", side)
	}
	qpn = uint32(value(strconv.ParseUint(m[1], 16, 24))(t))
	psn = uint32(value(strconv.ParseUint(m[2], 16, 24))(t))
	return qpn, psn, value(ParseGID(m[3]))(t)
}

// TestGoldenPingpong does what ibv_rc_pingpong does, by ioctl and by write().
func TestGoldenPingpong(t *testing.T) {
	for _, test := range []struct {
		file string
		path abiPath
		want int // how many commands are compared
	}{{"rc_pingpong_ioctl", pathIoctl, 17}, {"rc_pingpong_write", pathWrite, 16}} {
		t.Run(test.file, func(t *testing.T) {
			golden, comment := readGolden(t, test.file)
			_, psn, _ := goldenPeer(t, comment, "local")
			peerQPN, peerPSN, peerGID := goldenPeer(t, comment, "remote")

			var ours []goldenCommand
			d, k, err := openFake(t, test.path, func(k *fakeKernel) {
				k.seen = func(cmd *ioctlCommand, write []byte) { ours = append(ours, k.see(cmd, write)) }
				k.next = ^uint32(0) // handles start at 0, as in the kernel
				k.gids = []abi.GIDEntry{{PortNum: 1, GIDIndex: 1}}
			})
			must(t, err)
			pd := value(d.AllocPD())(t)
			ch := value(d.CreateCompChannel())(t)
			buf := value(AllocBuffer(64))(t)
			mr := value(pd.RegMR(buf, AccessLocalWrite))(t)
			cq := value(d.CreateCQ(501, CQOptions{Channel: ch}))(t)
			qp := value(pd.CreateQP(QPOptions{SendCQ: cq, RecvCQ: cq, MaxSendWR: 1, MaxRecvWR: 500}))(t)
			if test.path == pathIoctl {
				value(d.QueryGID(1, 1))(t) // which asks for the port first
			} else {
				value(d.QueryPort(1))(t)
			}
			must(t,
				qp.Modify(QPAttr{State: Init, Port: 1}, AttrState|AttrPKeyIndex|AttrPort|AttrAccess),
				qp.Modify(QPAttr{
					State: RTR, PathMTU: MTU1024, DestQPN: peerQPN, RQPSN: peerPSN, MaxDestRdAtomic: 1, MinRNRTimer: 12,
					AH: AHAttr{Global: true, Port: 1, GRH: GRH{DGID: peerGID, HopLimit: 1, SGIDIndex: 1}},
				}, AttrState|AttrAV|AttrPathMTU|AttrDestQPN|AttrRQPSN|AttrMaxDestRdAtomic|AttrMinRNRTimer),
				qp.Modify(QPAttr{State: RTS, Timeout: 14, RetryCount: 7, RNRRetry: 7, SQPSN: psn, MaxRdAtomic: 1},
					AttrState|AttrTimeout|AttrRetryCount|AttrRNRRetry|AttrSQPSN|AttrMaxRdAtomic),
			)
			ours = append(ours, fastCommands(k, cq.arm, qp.doorbell)...)
			must(t, qp.Close(), cq.Close(), ch.Close(), mr.Close(), buf.Close(), pd.Close())

			// ibv_rc_pingpong does not ask what the device can do.
			seen := compareGolden(t, ours, golden, "invoke EX_QUERY_DEVICE", "write EX_QUERY_DEVICE", "ioctl GET_CONTEXT")
			if len(seen) != test.want {
				t.Errorf("%d commands compared, want %d: %s", len(seen), test.want, strings.Join(seen, ", "))
			}
		})
	}
}

// fastCommands returns the bytes of commands that do not pass the hook. rdma-core arms a
// CQ by the way that other commands go, and rings the doorbell by write() always.
func fastCommands(k *fakeKernel, arm, doorbell *fastCommand) []goldenCommand {
	if arm.c.path == pathIoctl {
		return []goldenCommand{k.see(arm.inv, nil), k.see(nil, doorbell.write.wire)}
	}
	return []goldenCommand{k.see(nil, arm.write.wire), k.see(nil, doorbell.write.wire)}
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
				k.seen = func(cmd *ioctlCommand, write []byte) { ours = append(ours, k.see(cmd, write)) }
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

package trace

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// goldenFiles are the records of rdma-core's programs on rxe.
func goldenFiles(t testing.TB) []string {
	t.Helper()
	files, err := filepath.Glob("../replay/testdata/[drsu]*_*.record")
	if err != nil || len(files) != 10 {
		t.Fatalf("golden files: %q, %v", files, err)
	}
	return files
}

// golden returns the calls of a record.
func golden(t testing.TB, file string) []*Call {
	t.Helper()
	b, err := os.ReadFile(file)
	must(t, err)
	calls, _, err := readAll(b)
	if err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	return calls
}

var rxe = uint32(abi().values["RDMA_DRIVER_RXE"])

// TestGolden: every command of rdma-core's programs is known, by ioctl and by write.
func TestGolden(t *testing.T) {
	want := map[string][]string{
		"devinfo":     {"open device", "query device", "query port"},
		"rc_pingpong": {"open device", "allocate PD", "register MR", "create CQ", "create QP", "modify QP", "post send", "destroy QP"},
		"ud_pingpong": {"create AH", "destroy AH"},
	}
	for _, file := range goldenFiles(t) {
		seen := map[string]bool{}
		d := NewDecoder()
		for _, c := range golden(t, file) {
			e := d.Decode(c)
			if e.Unknown > 0 {
				t.Errorf("%s: %s", filepath.Base(file), e.Text())
			}
			if e.Call.Errno == "" {
				seen[e.Verb] = true
			}
			b, err := e.JSON()
			if err != nil || !json.Valid(b) {
				t.Errorf("%s: %v: %s", filepath.Base(file), err, b)
			}
		}
		program, _, _ := strings.Cut(filepath.Base(file), "_ioctl")
		program, _, _ = strings.Cut(program, "_write")
		for _, verb := range want[program] {
			if !seen[verb] {
				t.Errorf("%s has no %q but %q", filepath.Base(file), verb, slices.Sorted(maps.Keys(seen)))
			}
		}
	}
}

// TestLines compares lines with what a person should read.
func TestLines(t *testing.T) {
	want := map[string]string{
		"rc_pingpong_ioctl.record create QP": "uverbs1 create QP: QP 17 on PD 0, ",
		"rc_pingpong_write.record create QP": "uverbs1 create QP: QP 17 on PD 0, ",
	}
	for key, begin := range want {
		file, verb, _ := strings.Cut(key, " ")
		d := NewDecoder()
		found := false
		for _, c := range golden(t, "../replay/testdata/"+file) {
			e := d.Decode(c)
			if e.Verb == verb {
				found = true
				if _, text, _ := strings.Cut(e.Text(), " "); !strings.HasPrefix(text, begin) { // behind the thread
					t.Errorf("%s:\n%s\nwant\n%s...", key, e.Text(), begin)
				}
			}
			t.Log(e.Text())
		}
		if !found {
			t.Errorf("%s: not there", key)
		}
	}
}

// TestMappings: memory that is mapped has the name of what it belongs to.
func TestMappings(t *testing.T) {
	d := NewDecoder()
	d.file(&Call{Open: 1, File: "uverbs1", Driver: rxe})
	for _, c := range golden(t, "../replay/testdata/rc_pingpong_ioctl.record") {
		if e := d.Decode(c); strings.HasPrefix(e.Verb, "destroy") {
			break
		}
	}
	for offset, want := range map[uint64]string{0x1000: "CQ 2", 0x12000: "QP 17 sq", 0x13000: "QP 17 rq", 0x77000: ""} {
		e := d.Decode(&Call{Call: CallMmap, File: "uverbs1", Open: 1, Length: 4096, Offset: offset, Prot: 3})
		if e.Object != want || !strings.Contains(e.Text(), "prot read and write") {
			t.Errorf("offset %#x is of %q, want %q: %s", offset, e.Object, want, e.Text())
		}
	}
}

// TestSpec: the names in spec are in the headers, and every method and attribute of the headers has
// its place in it.
func TestSpec(t *testing.T) {
	h := abi()
	used := map[string]bool{}
	isEnum := func(name string) {
		if name != "-" && h.enums[name].enumerators == nil {
			t.Errorf("there is no enum %s", name)
		}
		used[name] = true
	}
	isValue := func(name string) {
		if _, ok := h.values[name]; !ok {
			t.Errorf("there is no enumerator %s", name)
		}
		used[name] = true
	}
	isStruct := func(name string) {
		if name != "-" && name != "" && h.structs[name] == nil {
			t.Errorf("there is no struct %s", name)
		}
	}
	for line := range strings.Lines(spec) {
		w := strings.Fields(line)
		if len(w) == 0 {
			continue
		}
		isValue(map[bool]string{true: "RDMA_DRIVER_RXE", false: w[1]}[w[0] == "driver"])
		switch w[0] {
		case "object", "method":
			isEnum(w[2])
		case "attr":
			if h.structs[w[2]] == nil {
				isEnum(w[2])
			}
		case "output":
		case "driver":
			isValue(w[1])
			isStruct(w[3])
			isStruct(w[4])
		default:
			t.Errorf("line %q", line)
		}
	}
	for _, m := range []map[string]string{enumFields, flagFields} {
		for field, name := range m {
			isEnum(name)
			if st, _, ok := strings.Cut(field, "."); ok {
				isStruct(st)
			}
		}
	}
	for _, s := range commandStructs {
		isStruct(s[0])
		isStruct(s[1])
	}
	for _, name := range doorbellCommands {
		isValue(name)
	}
	for _, in := range []string{"uverbs_default_objects", "mlx5_ib_objects"} {
		for _, o := range h.enums[in].enumerators {
			if !used[o.name] {
				t.Errorf("spec has no object %s", o.name)
			}
		}
	}
	for name, e := range h.enums {
		methods := strings.Contains(e.enumerators[0].name, "_METHOD_")
		attrs := strings.HasPrefix(e.enumerators[0].name, "UVERBS_ATTR_") || strings.HasPrefix(e.enumerators[0].name, "MLX5_IB_ATTR_") && !strings.HasSuffix(name, "_flags")
		if (methods || attrs) && !used[name] && name != "UVERBS_ATTR_F_MANDATORY" {
			t.Errorf("spec has no place for enum %s", name)
		}
		if methods {
			for _, m := range e.enumerators {
				if specified().methods[m.name] == nil {
					t.Errorf("spec has no method %s", m.name)
				}
			}
		}
	}
}

// notCommands are commands that no kernel of today has.
var notCommands = []string{
	"IB_USER_VERBS_CMD_MODIFY_AH", "IB_USER_VERBS_CMD_QUERY_AH", "IB_USER_VERBS_CMD_REG_SMR", "IB_USER_VERBS_CMD_QUERY_MR",
	"IB_USER_VERBS_CMD_BIND_MW", "IB_USER_VERBS_CMD_PEEK_CQ", "RDMA_USER_CM_CMD_GET_OPTION",
}

// TestCommands: every command has a struct.
func TestCommands(t *testing.T) {
	for _, in := range []string{"ib_uverbs_write_cmds", "IB_USER_VERBS_EX_CMD_QUERY_DEVICE", "RDMA_USER_CM_CMD_CREATE_ID"} {
		for _, c := range abi().enums[in].enumerators {
			st, resp := structsOf(c.name)
			if (st == "") != slices.Contains(notCommands, c.name) {
				t.Errorf("%s has struct %q", c.name, st)
			}
			if slices.ContainsFunc(abi().fieldsOf(st), func(f fieldType) bool { return f.name == "response" }) && resp == "" &&
				!strings.HasPrefix(c.name, "RDMA_USER_CM_CMD_BIND_IP") {
				t.Errorf("%s has no struct of its response", c.name)
			}
		}
	}
}

func (h *headers) fieldsOf(name string) []fieldType {
	if st := h.structs[name]; st != nil {
		return st.fields
	}
	return nil
}

// TestNewest: what only the newest kernels have has names, too.
func TestNewest(t *testing.T) {
	dbr := make(Octets, 40)
	for _, c := range []struct {
		object, method uint16
		attrs          []*Attr
		want           string
	}{
		{0, 8, []*Attr{{ID: 2, Len: 4, Flags: validOutput, Out: Octets{9, 0, 0, 0}}}, "query completion counter capabilities: supported_qp_attach_ops SEND|REMOTE_RDMA_READ"},
		{19, 0, []*Attr{{ID: 0, Data: Word{7}}}, "create completion counter: completion counter 7"},
		{4, 2, []*Attr{{ID: 0, Data: Word{3}}, {ID: 1, Data: Word{7}}, {ID: 2, Len: 4, Data: Word{2}}}, "attach completion counter to QP: QP with handle 3, completion counter 7, op_mask RECV"},
		{19, 2, []*Attr{{ID: 0, Data: Word{7}}, {ID: 1, Len: 1, Data: Word{1}}, {ID: 2, Len: 1, Data: Word{1}}, {ID: 3, Len: 8, Data: Word{5}}}, "modify completion counter: completion counter 7, entry ERR, op INC, value 5"},
		{19, 3, []*Attr{{ID: 0, Data: Word{7}}, {ID: 1, Len: 1, Data: Word{1}}}, "read completion counter: completion counter 7, entry ERR"},
		{19, 1, []*Attr{{ID: 0, Data: Word{7}}}, "destroy completion counter: completion counter 7"},
		{5, 0, []*Attr{{ID: 14, Len: 40, In: dbr}, {ID: 0x1002, Len: 40, In: dbr}}, "create SRQ: "},
	} {
		call := &Call{Call: CallIoctl, File: "uverbs0", Object: c.object, Method: c.method, Attrs: c.attrs, Driver: uint32(abi().values["RDMA_DRIVER_MLX5"])}
		e := NewDecoder().Decode(call)
		if !strings.Contains(e.Text(), c.want) || e.Unknown != 0 {
			t.Errorf("%d unknown: %s, want %s", e.Unknown, e.Text(), c.want)
		}
	}
}

// TestUnknown: what no header names is shown as bytes, and counted.
func TestUnknown(t *testing.T) {
	value := Word{1, 2}
	for name, c := range map[string]*Call{
		"attribute": {Call: CallIoctl, File: "uverbs0", Object: 1, Attrs: []*Attr{{ID: 0x77, Len: 2, Data: value}}},
		"object":    {Call: CallIoctl, File: "uverbs0", Object: 0x99, Attrs: []*Attr{{ID: 0x77, Len: 2, Data: value}}},
		"driver":    {Call: CallIoctl, File: "uverbs0", Object: 0x1001, Method: 0x1000, Driver: rxe, Attrs: []*Attr{{ID: 0x77, Len: 2, Data: value}}},
		"command":   {Call: CallWrite, File: "uverbs0", Request: Octets{49, 0, 0, 0, 3, 0, 0, 0, 1, 2, 0, 0}},
		"rdma_cm":   {Call: CallWrite, File: CMFile, Request: Octets{99, 0, 0, 0, 2, 0, 0, 0, 1, 2}},
		"longer":    {Call: CallWrite, File: "uverbs0", Driver: rxe, Request: append(Octets{4, 0, 0, 0, 4, 0, 0, 0, 9, 0, 0, 0}, 1, 2, 0, 0)},
	} {
		e := NewDecoder().Decode(c)
		if e.Unknown == 0 || !strings.Contains(e.Text(), "0x0102") {
			t.Errorf("%s: %d unknown: %s", name, e.Unknown, e.Text())
		}
	}
}

// TestPrintable: a name of a file does nothing to a terminal.
func TestPrintable(t *testing.T) {
	for _, name := range []string{"\x1b[2J", "a\nb", "\x9b2J"} {
		e := NewDecoder().Decode(&Call{Call: CallExec, Text: "/bin/" + name})
		if text := e.Text(); strings.Contains(text, name) || !strings.Contains(text, "/bin/") {
			t.Errorf("%q", text)
		}
	}
}

// FuzzDecode: no call makes the decoder panic.
func FuzzDecode(f *testing.F) {
	for _, file := range goldenFiles(f) {
		for i, c := range golden(f, file) {
			if b, err := json.Marshal(c); err == nil && i%4 == 0 {
				f.Add(b)
			}
		}
	}
	f.Add([]byte(`{"call":"write","file":"rdma_cm","request":"0c00000008004801000000000000","response":"00"}`))
	f.Add([]byte(`{"call":"read","file":"event","response":"00000000000000000100000000000000"}`))
	f.Add([]byte(`{"call":"mmap","file":"uverbs0","driver":1,"length":4096,"offset":4096,"prot":3}`))
	d := NewDecoder()
	f.Fuzz(func(t *testing.T, b []byte) {
		c := &Call{}
		if json.Unmarshal(b, c) != nil || c.Call == "" { // the reader refuses it
			return
		}
		for _, a := range c.Attrs {
			if a == nil {
				return
			}
		}
		e := d.Decode(c)
		if e.Verb == "" || e.Text() == "" {
			t.Errorf("%s: nothing to print", b)
		}
		if _, err := e.JSON(); err != nil {
			t.Errorf("%s: %v", b, err)
		}
	})
}

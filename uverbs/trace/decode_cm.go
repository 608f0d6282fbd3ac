package trace

import (
	"encoding/binary"
	"fmt"
	"strings"
)

// cmWrite describes a command of rdma_cm: struct rdma_ucm_cmd_hdr and the struct of the command.
func (f *openFile) cmWrite(e *Event) {
	c := e.Call
	if len(c.Request) < 8 {
		e.Verb, e.Unknown = "write", 1
		e.rest(c.Request, false, false)
		return
	}
	number := binary.LittleEndian.Uint32(c.Request)
	name, ok := abi().enums["RDMA_USER_CM_CMD_CREATE_ID"].name(uint64(number))
	in, out := structsOf(name)
	if !ok || in == "" {
		e.Verb, e.Unknown = fmt.Sprintf("rdma_cm command %d", number), 1
		e.rest(c.Request[8:], false, false)
		e.rest(c.Response, true, false)
		return
	}
	e.Method, e.Verb, e.Kind = name, verbOf(name), "ID"
	body := c.Request[8:]
	out = queried(name, out, body)
	f.structs(e, in, body, false)
	id, hasID := e.find(false, "id")
	if len(c.More) > 0 {
		e.add(Payload{Name: "optval", ID: -1, Values: []Value{option(c.More)}})
	}
	if c.Errno == "" && !c.Unfinished {
		values, rest := f.decodeStruct(out, c.Response, f.ofPortSpace(out, c.Response))
		if out != "" && len(c.Response) > 0 {
			e.add(Payload{Name: out, ID: -1, Output: true, Values: values})
		}
		e.rest(rest, true, false)
	}
	if n, ok := e.find(true, "id"); ok && !hasID {
		id, hasID = n, true
	}
	if !hasID {
		return
	}
	key := object{"ID", uint32(id.number)}
	if t, ok := e.find(false, "qp_type"); ok && c.Errno == "" {
		f.objects[key] = &objectInfo{number: key.handle, qpType: t.number}
	}
	e.Object = f.label("ID", key.handle)
	if v, ok := e.find(true, "event"); ok && strings.HasSuffix(name, "GET_EVENT") {
		e.note("event", v.Text)
	}
}

// queried returns the struct of the answer to a query of rdma_cm, which its option selects.
func queried(name, out string, body []byte) string {
	if name != "RDMA_USER_CM_CMD_QUERY" || len(body) < 16 {
		return out
	}
	switch option, _ := abi().enums["RDMA_USER_CM_QUERY_ADDR"].name(uint64(binary.LittleEndian.Uint32(body[12:]))); option {
	case "RDMA_USER_CM_QUERY_PATH":
		return "rdma_ucm_query_path_resp"
	case "RDMA_USER_CM_QUERY_IB_SERVICE":
		return "rdma_ucm_query_ib_service_resp"
	}
	return out
}

// ofPortSpace returns a function that skips the parameters of an event which are not those of its
// ID's type of QP.
func (f *openFile) ofPortSpace(name string, b []byte) func(string) bool {
	if name != "rdma_ucm_event_resp" || len(b) < 12 {
		return nil
	}
	hide := "param.ud"
	if o := f.objects[object{"ID", binary.LittleEndian.Uint32(b[8:])}]; o != nil && abi().values["IB_UVERBS_QPT_UD"] == o.qpType {
		hide = "param.conn"
	}
	return func(field string) bool { return strings.HasPrefix(field, hide) || field == "param.arg32" }
}

// option returns the value of an option of an ID.
func option(b []byte) Value {
	if len(b) <= 8 {
		n := integer(b, false)
		return Value{Name: "value", Text: fmt.Sprint(n), JSON: n, number: n}
	}
	return octets("value", b)
}

package trace

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math/bits"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// Value is a field of a struct, or the number that an attribute has.
type Value struct {
	Name string // of the field in C, "" for the number itself
	Text string // for a person
	JSON any    // for a program
	Zero bool   // it is 0, none or the like

	number uint64
	handle string // the kind of object, if it is a handle
}

// inWords returns a value whose words are all that there is to say.
func inWords(name, text string) Value { return Value{Name: name, Text: text, JSON: text} }

// enumFields are the fields that have a value of an enum.
var enumFields = map[string]string{
	"qp_type": "ib_uverbs_qp_type", "srq_type": "ib_uverbs_srq_type", "wq_type": "ib_uverbs_wq_type",
	"gid_type": "ib_uverbs_gid_type", "ps": "rdma_ucm_port_space", "rdma_ucm_query.option": "RDMA_USER_CM_QUERY_ADDR",
	"rdma_ucm_set_option.level": "RDMA_OPTION_ID", "rdma_ucm_join_mcast.join_flags": "RDMA_MC_JOIN_FLAG_FULLMEMBER",
	"ib_uverbs_buffer_desc.type": "ib_uverbs_buffer_type",
}

// flagFields are the fields that have bits of an enum.
var flagFields = map[string]string{
	"access_flags": "ib_uverbs_access_flags", "qp_access_flags": "ib_uverbs_access_flags",
	"device_cap_flags": "ib_uverbs_device_cap_flags", "device_cap_flags_ex": "ib_uverbs_device_cap_flags",
	"port_cap_flags": "ib_uverbs_query_port_cap_flags", "create_flags": "ib_uverbs_qp_create_flags",
	"raw_packet_caps": "ib_uverbs_raw_packet_caps", "ib_uverbs_ex_create_cq.flags": "ib_uverbs_ex_create_cq_flags",
	"mlx5_ib_create_qp.flags": "MLX5_QP_FLAG_SIGNATURE", "mlx5_ib_create_cq.flags": "mlx5_ib_create_cq_flags",
	"lib_caps": "mlx5_lib_caps", "cmds_supp_uhw": "mlx5_user_cmds_supp_uhw",
	"mlx5_ib_alloc_ucontext_req_v2.flags": "mlx5_ib_alloc_uctx_v2_flags", "rx_hash_function": "mlx5_rx_hash_function_flags",
	"rx_hash_fields_mask": "mlx5_rx_hash_fields", "mlx5_ib_query_device_resp.flags": "mlx5_ib_query_dev_resp_flags",
	"mlx5_ib_alloc_ucontext_resp.comp_mask": "mlx5_ib_alloc_ucontext_resp_mask",
	"mlx5_ib_create_qp_resp.comp_mask":      "mlx5_ib_create_qp_resp_mask",
}

// wordFields are the fields for which this module has a type with names.
var wordFields = map[string]func(uint64) string{
	"qp_state":                        func(v uint64) string { return ib.QPState(v).String() },
	"cur_qp_state":                    func(v uint64) string { return ib.QPState(v).String() },
	"wq_state":                        func(v uint64) string { return uverbs.WQState(v).String() },
	"curr_wq_state":                   func(v uint64) string { return uverbs.WQState(v).String() },
	"ib_uverbs_modify_qp.attr_mask":   func(v uint64) string { return "{" + uverbs.QPAttrMask(v).String() + "}" },
	"qp_attr_mask":                    func(v uint64) string { return "{" + uverbs.QPAttrMask(v).String() + "}" },
	"path_mtu":                        mtu,
	"active_mtu":                      mtu,
	"max_mtu":                         mtu,
	"event_type":                      func(v uint64) string { return uverbs.EventType(v).String() },
	"rdma_ucm_event_resp.event":       cmEvent,
	"rdma_ucm_notify.event":           func(v uint64) string { return uverbs.EventType(v).String() },
	"ib_uverbs_query_port_resp.state": func(v uint64) string { return ib.PortState(v).String() },
	"link_layer":                      func(v uint64) string { return ib.LinkLayer(v).String() },
}

// cmEvents are the types of the connection manager's events (enum rdma_cm_event_type). Package cm has them
// too, and is above this one.
var cmEvents = []string{
	"ADDR_RESOLVED", "ADDR_ERROR", "ROUTE_RESOLVED", "ROUTE_ERROR", "CONNECT_REQUEST", "CONNECT_RESPONSE", "CONNECT_ERROR", "UNREACHABLE",
	"REJECTED", "ESTABLISHED", "DISCONNECTED", "DEVICE_REMOVAL", "MULTICAST_JOIN", "MULTICAST_ERROR", "ADDR_CHANGE", "TIMEWAIT_EXIT",
	"ADDRINFO_RESOLVED", "ADDRINFO_ERROR", "USER", "INTERNAL",
}

func cmEvent(v uint64) string {
	if v < uint64(len(cmEvents)) {
		return cmEvents[v]
	}
	return fmt.Sprintf("event %d", v)
}

func mtu(v uint64) string {
	if v < 1 || v > 5 {
		return fmt.Sprintf("code %d", v)
	}
	return fmt.Sprint(128 << v)
}

// hexEnds are the ends of names whose numbers are hexadecimal.
var hexEnds = []string{"addr", "_va", "iova", "start", "user_handle", "mask", "flags", "key", "offset", "uid", "response", "stag",
	"optval", "ptr", "caps", "cookie", "lib_caps", "element", "handle"}

// decodeStruct returns the fields of a struct and the bytes behind it. Fields that b does not reach
// are left out, and of fields at the same place all but the first.
func (f *openFile) decodeStruct(name string, b []byte, skip func(field string) bool) ([]Value, []byte) {
	st := abi().structs[name]
	if st == nil {
		return nil, b
	}
	var values []Value
	end := f.fields(&values, st, "", b, skip, 0)
	return values, b[min(len(b), max(st.size, end)):]
}

// counts are the fields that say how many elements an array without a length has. The kernel has
// not written the elements behind these.
var counts = []string{"num_paths", "num_service_recs"}

// maxElements limits the elements of an array without a length.
const maxElements = 1 << 12

// fields adds the fields of a struct, and returns where they end.
func (f *openFile) fields(values *[]Value, st *structType, prefix string, b []byte, skip func(string) bool, depth int) (end int) {
	elements := -1
	for _, t := range st.fields {
		if t.offset < end && !(t.array && t.count == 0) || t.size == 0 || skip != nil && skip(prefix+t.name) {
			continue
		}
		count := t.count
		if t.array && count == 0 {
			if t.name == "driver_data" || len(b) <= t.offset {
				continue
			}
			count = min((len(b)-t.offset)/t.size, maxElements)
			if elements >= 0 {
				count = min(count, elements)
				defer func() { end = len(b) }()
			}
		}
		if t.offset+count*t.size > len(b) {
			return end
		}
		end = max(end, t.offset+count*t.size)
		part := b[t.offset:][:count*t.size]
		switch {
		case t.inner != "" && len(abi().structs[t.inner].fields) > 0 && depth < 8:
			for i := range count {
				name := prefix + t.name
				if t.array {
					name = fmt.Sprintf("%s[%d]", name, i)
				}
				f.fields(values, abi().structs[t.inner], name+".", part[i*t.size:][:t.size], skip, depth+1)
			}
		default:
			v := f.field(st.name, prefix, t, part, b)
			if slices.Contains(counts, t.name) {
				elements = int(min(v.number, maxElements))
			}
			*values = append(*values, v)
		}
	}
	return end
}

// field returns a field that is not a struct, or an array of those.
func (f *openFile) field(structName, prefix string, t fieldType, part, all []byte) Value {
	name := prefix + t.name
	var v Value
	switch {
	case strings.Contains(t.inner, "sockaddr"):
		return address(name, part)
	case t.name == "private_data" || t.name == "service_name":
		if n := lengthOf(structName, "private_data_len", all); n <= len(part) && t.name == "private_data" {
			part = part[:n]
		}
		return octets(name, part)
	case t.inner != "":
		return octets(name, part)
	case len(part) == 16 && (strings.HasSuffix(t.name, "gid") || t.inner == "rxe_gid"):
		v = inWords(name, ib.GID(part).String())
	case strings.HasSuffix(t.name, "guid") && len(part) == 8:
		v = inWords(name, ib.GUID(binary.BigEndian.Uint64(part)).String())
	case strings.HasSuffix(t.name, "mac") && len(part) == 6:
		v = inWords(name, net.HardwareAddr(part).String())
	case t.name == "fw_ver" && t.size == 8:
		n := binary.LittleEndian.Uint64(part)
		v = inWords(name, fmt.Sprintf("%d.%d.%d", n>>32, n>>16&0xffff, n&0xffff))
	case t.array && t.size == 1:
		return octets(name, part)
	case t.array:
		var list []uint64
		for b := part; len(b) >= t.size; b = b[t.size:] {
			list = append(list, integer(b[:t.size], t.big))
		}
		v = Value{Name: name, JSON: list, Text: fmt.Sprint(list)}
	case t.signed && t.size == 4:
		v := signed(name, integer(part, t.big))
		v.Zero = v.JSON == int32(0) || v.JSON == int32(-1)
		return v
	default:
		return f.number(structName, t.name, name, integer(part, t.big), t.size)
	}
	v.Zero = zero(part)
	return v
}

// signed returns a number of 32 bits that has a sign, such as a descriptor.
func signed(name string, n uint64) Value {
	return Value{Name: name, Text: fmt.Sprint(int32(n)), JSON: int32(n), number: n}
}

// lengthOf returns a field of one byte, by its name, of the struct in b.
func lengthOf(structName, field string, b []byte) int {
	for _, t := range abi().structs[structName].fields {
		if t.name == field && t.offset < len(b) {
			return int(b[t.offset])
		}
	}
	return 1 << 16
}

func zero(b []byte) bool { return len(bytes.Trim(b, "\x00")) == 0 }

func integer(b []byte, big bool) uint64 {
	var w [8]byte
	if big {
		copy(w[8-min(8, len(b)):], b)
		return binary.BigEndian.Uint64(w[:])
	}
	copy(w[:], b)
	return binary.LittleEndian.Uint64(w[:])
}

// octetsShown is the number of bytes that a line shows.
const octetsShown = 32

// octets returns bytes that have no other form. A line has the first of them, JSON all.
func octets(name string, b []byte) Value {
	text := hex.EncodeToString(b)
	v := Value{Name: name, Text: "0x" + text, JSON: text, Zero: zero(b)}
	if len(b) > octetsShown {
		v.Text = fmt.Sprintf("0x%s... (%d bytes)", text[:2*octetsShown], len(b))
	}
	return v
}

// number returns a number, whose meaning its name says.
func (f *openFile) number(structName, field, name string, n uint64, size int) Value {
	v := Value{Name: name, JSON: n, Text: fmt.Sprint(n), Zero: n == 0, number: n}
	find := func(m map[string]string) string {
		if e := m[structName+"."+field]; e != "" {
			return e
		}
		return m[field]
	}
	words := wordFields[structName+"."+field]
	if words == nil {
		words = wordFields[field]
	}
	switch e, flags := find(enumFields), find(flagFields); {
	case words != nil:
		v.Text = words(n)
		v.JSON = strings.Trim(v.Text, "{}")
	case e != "":
		v.typed(e)
	case flags != "":
		v.flags(flags)
	case strings.HasSuffix(field, "_handle") && size == 4:
		v.handle = kindOfField(field)
		v.Text, v.Zero = f.label(v.handle, uint32(n)), false
	default:
		for _, end := range hexEnds {
			if strings.HasSuffix(field, end) {
				v.hex()
				break
			}
		}
	}
	return v
}

func (v *Value) hex() {
	v.Text = fmt.Sprintf("%#x", v.number)
	v.JSON = v.Text
}

// typed gives a value the name that an enum has for it. Where the enum has flags, the value has the
// names of its bits.
func (v *Value) typed(name string) {
	e := abi().enums[name]
	bits := strings.Contains(name, "flag") || strings.HasSuffix(name, "_core_support") || name == "ib_uverbs_qp_attach_comp_cntr_op"
	if n, ok := e.name(v.number); ok && !strings.Contains(name, "flag") {
		v.Text, v.JSON = e.shortName(n), n
		v.Zero = v.Zero && strings.Contains(name, "flags")
		return
	}
	if bits {
		v.flags(name)
		return
	}
	v.Text = fmt.Sprintf("unknown %d", v.number)
}

// flags gives a value the names of its bits.
func (v *Value) flags(name string) {
	e := abi().enums[name]
	var all []string
	rest := v.number
	for rest != 0 {
		bit := rest & -rest
		rest &^= bit
		if n, ok := e.name(bit); ok {
			all = append(all, e.shortName(n))
		} else {
			all = append(all, fmt.Sprintf("bit %d", bits.TrailingZeros64(bit)))
		}
	}
	v.JSON = fmt.Sprintf("%#x", v.number)
	v.Text = strings.Join(all, "|")
	if v.number == 0 {
		v.Text = "0"
	}
}

// shortName returns the name of an enumerator without what all of them begin with.
func (e enum) shortName(name string) string {
	if len(e.enumerators) == 1 {
		if i := strings.Index(name, "_FLAGS_"); i > 0 {
			return name[i+len("_FLAGS_"):]
		}
		return name
	}
	return name[len(e.prefix):]
}

// Families of addresses.
const (
	inet  = 2
	inet6 = 10
)

// address returns a socket address (struct sockaddr_storage and others).
func address(name string, b []byte) Value {
	v := octets(name, b)
	var a netip.Addr
	switch family := binary.LittleEndian.Uint16(b); {
	case family == 0:
		v.Zero = true
		return v
	case family == inet && len(b) >= 8:
		a = netip.AddrFrom4([4]byte(b[4:8]))
	case family == inet6 && len(b) >= 28:
		a = netip.AddrFrom16([16]byte(b[8:24]))
		if scope := binary.LittleEndian.Uint32(b[24:]); scope != 0 {
			a = a.WithZone(fmt.Sprint(scope))
		}
	default:
		return v
	}
	v.Text = netip.AddrPortFrom(a, binary.BigEndian.Uint16(b[2:])).String()
	v.JSON = v.Text
	return v
}

// kindOfField returns the kind of object that a field has the handle of: "send_cq_handle" is of a CQ.
func kindOfField(field string) string {
	s := strings.ToUpper(strings.TrimSuffix(field, "_handle"))
	s = strings.TrimPrefix(strings.TrimPrefix(s, "SEND_"), "RECV_")
	switch s {
	case "IND_TBL", "RWQ_IND_TBL", "IND_TABLE":
		s = "RWQ_IND_TBL"
	case "DMA":
		s = "DMAH"
	case "CNTR":
		s = "COMP_CNTR"
	}
	return kindOf(s)
}

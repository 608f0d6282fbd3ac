package wire

import (
	"fmt"
	"strings"

	"github.com/goverbs/goverbs/uverbs/ib"
)

// transportNames are the names of transports, by their number.
var transportNames = [...]string{RC >> 5: "RC", UC >> 5: "UC", UD >> 5: "UD"}

var operationNames = [1 << 5]string{
	SendFirst:          "SEND First",
	SendMiddle:         "SEND Middle",
	SendLast:           "SEND Last",
	SendLastImm:        "SEND Last with Immediate",
	SendOnly:           "SEND Only",
	SendOnlyImm:        "SEND Only with Immediate",
	WriteFirst:         "RDMA WRITE First",
	WriteMiddle:        "RDMA WRITE Middle",
	WriteLast:          "RDMA WRITE Last",
	WriteLastImm:       "RDMA WRITE Last with Immediate",
	WriteOnly:          "RDMA WRITE Only",
	WriteOnlyImm:       "RDMA WRITE Only with Immediate",
	ReadRequest:        "RDMA READ Request",
	ReadResponseFirst:  "RDMA READ Response First",
	ReadResponseMiddle: "RDMA READ Response Middle",
	ReadResponseLast:   "RDMA READ Response Last",
	ReadResponseOnly:   "RDMA READ Response Only",
	Acknowledge:        "Acknowledge",
	AtomicAcknowledge:  "ATOMIC Acknowledge",
	CompareSwap:        "CmpSwap",
	FetchAdd:           "FetchAdd",
	SendLastInv:        "SEND Last with Invalidate",
	SendOnlyInv:        "SEND Only with Invalidate",
	Flush:              "FLUSH",
	AtomicWrite:        "ATOMIC WRITE",
}

// String returns the name of the opcode in the InfiniBand Architecture Specification, such as "RC SEND
// Only".
func (o Opcode) String() string {
	switch {
	case o.Known():
		return transportNames[o>>5] + " " + operationNames[o.Operation()]
	case o == CNP:
		return "CNP"
	}
	return fmt.Sprintf("opcode %#02x", uint8(o))
}

// DescribeSyndrome says in words what the syndrome of an AETH means.
func DescribeSyndrome(syndrome uint8) string {
	code := syndrome & SyndromeCodeMask
	switch TypeOf(syndrome) {
	case ACK:
		if syndrome == SyndromeACK {
			return "ACK"
		}
		return fmt.Sprintf("ACK credits %d", code)
	case RNRNAK:
		return fmt.Sprintf("RNR NAK wait %v", ib.RNRTimer(code).Duration())
	case NAK:
		switch syndrome {
		case SyndromeSequence:
			return "NAK PSN sequence error"
		case SyndromeInvalidRequest:
			return "NAK invalid request"
		case SyndromeRemoteAccess:
			return "NAK remote access error"
		case SyndromeRemoteOp:
			return "NAK remote operational error"
		}
		return fmt.Sprintf("NAK code %d", code)
	}
	return fmt.Sprintf("reserved syndrome %#02x", syndrome)
}

// String describes the header in one line: opcode, destination QPN, PSN and what the extension headers
// say. QPNs, PSNs and lengths are decimal, keys and addresses hexadecimal.
func (h *Header) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%v QP %d PSN %d", h.Opcode, h.DestQP, h.PSN)
	h.describeExtensions(&b)
	for _, flag := range []struct {
		set  bool
		name string
	}{
		{h.Solicited, "solicited"}, {h.AckReq, "ack requested"}, {h.FECN, "FECN"}, {h.BECN, "BECN"},
	} {
		if flag.set {
			b.WriteString(", " + flag.name)
		}
	}
	if h.PKey != DefaultPKey {
		fmt.Fprintf(&b, ", P_Key %#04x", h.PKey)
	}
	return b.String()
}

// describeExtensions describes the extension headers.
func (h *Header) describeExtensions(b *strings.Builder) {
	in := opcodes[h.Opcode]
	if in&hasDETH != 0 {
		fmt.Fprintf(b, ", from QP %d Q_Key %#x", h.SrcQP, h.QKey)
	}
	if in&hasFETH != 0 {
		b.WriteString(", " + describeFlush(h.FlushType, h.FlushLevel))
	}
	if in&hasRETH != 0 {
		fmt.Fprintf(b, ", address %#x rkey %#x length %d", h.Addr, h.RKey, h.Length)
	}
	if in&hasAtomicETH != 0 {
		fmt.Fprintf(b, ", address %#x rkey %#x", h.Addr, h.RKey)
		if h.Opcode.Operation() == CompareSwap {
			fmt.Fprintf(b, " compare %#x swap %#x", h.Compare, h.SwapAdd)
		} else {
			fmt.Fprintf(b, " add %#x", h.SwapAdd)
		}
	}
	if in&hasAETH != 0 {
		fmt.Fprintf(b, ", %s MSN %d", DescribeSyndrome(h.Syndrome), h.MSN)
	}
	if in&hasAtomicAckETH != 0 {
		fmt.Fprintf(b, ", original %#x", h.Original)
	}
	if in&hasImm != 0 {
		fmt.Fprintf(b, ", immediate %#x", h.Imm)
	}
	if in&hasIETH != 0 {
		fmt.Fprintf(b, ", invalidate rkey %#x", h.InvKey)
	}
}

func describeFlush(typ, level uint8) string {
	types := [4]string{"to nowhere", "global", "persistent", "global and persistent"}
	s := fmt.Sprintf("placement %#x", typ)
	if int(typ) < len(types) {
		s = types[typ]
	}
	switch level {
	case FlushRange:
		return s + " of a range"
	case FlushMR:
		return s + " of the MR"
	}
	return fmt.Sprintf("%s, level %d", s, level)
}

// Describe describes a packet, from BTH to ICRC, in one line: its header, and the length of its payload
// if its opcode may have one. If it cannot be parsed, Describe says why.
func Describe(packet []byte) string {
	var h Header
	payload, err := Parse(packet, &h)
	if err != nil {
		return fmt.Sprintf("%d bytes: %v", len(packet), err)
	}
	if !h.Opcode.HasPayload() && len(payload) == 0 {
		return h.String()
	}
	unit := "bytes"
	if len(payload) == 1 {
		unit = "byte"
	}
	return fmt.Sprintf("%v, %d %s", &h, len(payload), unit)
}

package main

import "strings"

// initialisms are the words that Go names write in a fixed way.
var initialisms = map[string]string{
	"aes": "AES", "ah": "AH", "av": "AV", "ca": "CA", "cq": "CQ", "cqe": "CQE", "dgid": "DGID", "dlid": "DLID",
	"dm": "DM", "dma": "DMA", "dmac": "DMAC", "ee": "EE", "esp": "ESP", "ethy": "Ethy", "fd": "FD",
	"fmr": "FMR", "fw": "FW", "gcm": "GCM", "gid": "GID", "grh": "GRH", "guid": "GUID", "hca": "HCA",
	"hw": "HW", "icv": "ICV", "id": "ID", "iova": "IOVA", "ip": "IP", "ipv4": "IPv4", "ipv6": "IPv6",
	"iv": "IV", "lid": "LID", "lkey": "LKey", "lmc": "LMC", "ls": "LS", "mi": "MI", "mlid": "MLID",
	"mr": "MR", "mtu": "MTU", "mw": "MW", "ne": "NE", "nla": "NLA", "odp": "ODP", "pd": "PD",
	"pkey": "PKey", "pkeys": "PKeys", "psn": "PSN", "qkey": "QKey", "qp": "QP", "qpn": "QPN",
	"qpts": "QPTs", "rc": "RC", "rd": "RD", "rdd": "RDD", "rdma": "RDMA", "rkey": "RKey", "rnr": "RNR",
	"rq": "RQ", "rss": "RSS", "rwq": "RWQ", "sge": "SGE", "sgid": "SGID", "sl": "SL", "slid": "SLID",
	"sm": "SM", "sq": "SQ", "sqd": "SQD", "srq": "SRQ", "srqn": "SRQN", "ssn": "SSN", "tm": "TM",
	"uc": "UC", "ud": "UD", "va": "VA", "vl": "VL", "wc": "WC", "wq": "WQ", "wqe": "WQE", "wqn": "WQN",
	"wr": "WR", "xrc": "XRC", "xrcd": "XRCD", "xsrq": "XSRQ",
}

// camel returns a C name in Go's spelling: pd_handle is PDHandle.
func camel(c string) string {
	var b strings.Builder
	for word := range strings.SplitSeq(c, "_") {
		if word == "" {
			continue
		}
		if s, ok := initialisms[strings.ToLower(word)]; ok {
			b.WriteString(s)
			continue
		}
		b.WriteString(strings.ToUpper(word[:1]) + word[1:])
	}
	s := b.String()
	if s == "" || s[0] >= '0' && s[0] <= '9' {
		s = "X" + s
	}
	return s
}

// reserved reports whether a C field of this name only keeps its place.
func reserved(c string) bool {
	c = strings.TrimLeft(c, "_")
	c = strings.TrimPrefix(c, "cmd_hdr_")
	c = strings.TrimRight(c, "0123456789")
	c = strings.TrimSuffix(c, "_")
	switch c {
	case "reserved", "rsvd", "pad", "padding":
		return true
	}
	return false
}

// fileName returns the name of the file that is generated for a header.
func fileName(header string) string {
	base := header[strings.LastIndex(header, "/")+1:]
	return "z" + strings.TrimSuffix(base, ".h") + ".go"
}

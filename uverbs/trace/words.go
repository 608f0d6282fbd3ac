package trace

import (
	"slices"
	"strings"
)

// short are the words of C names that stay in capitals.
var short = map[string]bool{
	"PD": true, "CQ": true, "QP": true, "SRQ": true, "AH": true, "MR": true, "MW": true, "XRCD": true, "WQ": true, "DM": true,
	"GID": true, "ID": true, "IP": true, "DMAH": true, "DMABUF": true, "RWQ": true, "ESP": true, "UAR": true, "VAR": true,
	"PP": true, "DEVX": true, "EQN": true, "IB": true, "UMEM": true, "CM": true, "MAD": true, "SMR": true,
}

// long are the words of C names that are abbreviations.
var long = map[string]string{
	"REG": "register", "DEREG": "deregister", "REREG": "reregister", "ALLOC": "allocate", "DEALLOC": "deallocate",
	"MCAST": "multicast", "COMP": "completion", "REQ": "request", "TBL": "table", "IND": "indirection", "OBJ": "object",
	"INIT": "initialize", "ADDR": "address", "OP": "operation", "PARAM": "parameter", "ATTR": "attributes", "XSRQ": "XRC SRQ",
	"CNTR": "counter", "CMD": "command", "FD": "channel", "ASYNC": "asynchronous",
}

// last are verbs that stand behind their object in names of methods.
var last = []string{"CREATE", "DESTROY", "ALLOC", "FREE", "REG", "DEREG", "QUERY", "READ", "MODIFY"}

// verbs are names that do not follow from the C name.
var verbs = map[string]string{
	"GET_CONTEXT":             "open device",
	"REQ_NOTIFY_CQ":           "request CQ notification",
	"MR_DESTROY":              "deregister MR",
	"PD_DESTROY":              "deallocate PD",
	"MW_DESTROY":              "deallocate MW",
	"XRCD_DESTROY":            "close XRCD",
	"DM_MR_REG":               "register MR of DM",
	"ADVISE_MR":               "advise MR",
	"INFO_HANDLES":            "list handles",
	"FLOW_ACTION_ESP_CREATE":  "create ESP flow action",
	"FLOW_ACTION_ESP_MODIFY":  "modify ESP flow action",
	"INIT_QP_ATTR":            "initialize QP attributes",
	"GET_EVENT":               "get CM event",
	"MIGRATE_ID":              "migrate ID",
	"WRITE_CM_EVENT":          "write CM event",
	"REG_DMABUF_MR":           "register MR of DMABUF",
	"QP_ATTACH_COMP_CNTR":     "attach completion counter to QP",
	"QUERY_COMP_CNTR_CAPS":    "query completion counter capabilities",
	"JOIN_IP_MCAST":           "join multicast",
	"BIND_IP":                 "bind address",
	"BIND":                    "bind address",
	"RESOLVE_IP":              "resolve address",
	"QUERY_PORT_SPEED":        "query port speed",
	"UAR_OBJ_ALLOC":           "allocate UAR",
	"UAR_OBJ_DESTROY":         "free UAR",
	"VAR_OBJ_ALLOC":           "allocate VAR",
	"VAR_OBJ_DESTROY":         "free VAR",
	"PP_OBJ_ALLOC":            "allocate PP",
	"PP_OBJ_DESTROY":          "free PP",
	"ASYNC_EVENT_ALLOC":       "create asynchronous event channel",
	"DEVX_OBJ_ASYNC_QUERY":    "query DEVX object asynchronously",
	"CREATE_RWQ_IND_TBL":      "create RWQ indirection table",
	"DM_MAP_OP_ADDR":          "map DM operation address",
	"DEVX_ASYNC_CMD_FD_ALLOC": "create DEVX command channel",
}

// prefixes of C names that say nothing.
var prefixes = []string{
	"IB_USER_VERBS_EX_CMD_", "IB_USER_VERBS_CMD_", "RDMA_USER_CM_CMD_", "UVERBS_METHOD_", "MLX5_IB_METHOD_",
	"UVERBS_OBJECT_", "MLX5_IB_OBJECT_", "IB_USER_MAD_",
}

// plain returns a C name without its prefix.
func plain(name string) string {
	for _, p := range prefixes {
		if rest, ok := strings.CutPrefix(name, p); ok {
			return rest
		}
	}
	return name
}

// verbOf returns what a command or method does, in words, by its C name: "create QP".
func verbOf(name string) string {
	name = plain(name)
	if v, ok := verbs[name]; ok {
		return v
	}
	words := strings.Split(name, "_")
	if n := len(words) - 1; n > 0 && slices.Contains(last, words[n]) {
		words = append([]string{words[n]}, words[:n]...)
	}
	return join(words)
}

// kindOf returns the kind of an object in words, by the C name of its type: "QP", "flow action".
func kindOf(name string) string { return join(strings.Split(plain(name), "_")) }

func join(words []string) string {
	words = slices.Clone(words)
	for i, w := range words {
		switch {
		case short[w]:
		case long[w] != "":
			words[i] = long[w]
		default:
			words[i] = strings.ToLower(w)
		}
	}
	return strings.Join(words, " ")
}

// errnoWords returns what strerror(3) says of an error, by its name.
func errnoWords(name string) string {
	if e, ok := Errno(name); ok {
		return e.Error()
	}
	return "unknown error"
}

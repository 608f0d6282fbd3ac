package main

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseList(t *testing.T) {
	pkgs, err := parseList(strings.NewReader(`
# comment
package a/abi
about First line.
about Second line.
strip x_
header rdma/x.h
macro X_VERSION
enum x_kind
 enumof X_FLAG
const X_SHIFT = 1 << 2 + Y(1, 2)
omit X_MAX
struct x_a
union x_u
pointer x_a.p
tail x_a.t
member x_a.m
name x_a.u Name
note x_a.m one
note x_a.m two words
package b/abi
header rdma/x.h
`))
	must(t, err)
	want := []*packageList{{
		dir:   "a/abi",
		about: []string{"First line.", "Second line."},
		strip: "x_",
		headers: []*headerList{{
			path: "rdma/x.h",
			constants: []constItem{
				{kind: "macro", name: "X_VERSION"},
				{kind: "enum", name: "x_kind"},
				{kind: "enumof", name: "X_FLAG"},
				{kind: "const", name: "X_SHIFT", expr: "1 << 2 + Y(1, 2)"},
			},
			types: []typeItem{{kind: "struct", name: "x_a"}, {kind: "union", name: "x_u"}},
		}},
		omit:    map[string]bool{"X_MAX": true},
		pointer: map[string]bool{"x_a.p": true},
		tail:    map[string]bool{"x_a.t": true},
		member:  map[string]bool{"x_a.m": true},
		name:    map[string]string{"x_a.u": "Name"},
		note:    map[string][]string{"x_a.m": {"one", "two words"}},
	}, {
		dir:     "b/abi",
		headers: []*headerList{{path: "rdma/x.h"}},
		omit:    map[string]bool{},
		pointer: map[string]bool{},
		tail:    map[string]bool{},
		member:  map[string]bool{},
		name:    map[string]string{},
		note:    map[string][]string{},
	}}
	opt := cmp.AllowUnexported(packageList{}, headerList{}, constItem{}, typeItem{})
	for _, p := range pkgs {
		p.used = nil
	}
	if diff := cmp.Diff(want, pkgs, opt); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestParseListErrors(t *testing.T) {
	for _, tt := range []struct{ list, want string }{
		{"struct a", "line 1: struct: stands before the first package"},
		{"package p\nstruct a", "line 2: struct: stands before the first header of package p"},
		{"package p\n\nheader", "line 3: header: has no argument"},
		{"package p\nheader h\nheader h", "line 3: header: h: twice in package p"},
		{"package p\nheader h\nstruct a b", `line 3: struct: "a b": want one name`},
		{"package p\nheader h\nname a.b", `line 3: name: "a.b": want a field and a text`},
		{"package p\nheader h\nconst A 1", `line 3: const: "A 1": want NAME = EXPR`},
		{"package p\nheader h\nstructs a", "line 3: structs: no such directive"},
		{"package p\nheader h\nstruct a\nstruct a", "line 4: struct: a: twice in package p"},
		{"package p\nheader h\nmacro A\nheader i\nmacro A", "line 5: macro: A: twice in package p"},
		{"package p\npackage p", "line 2: package: p: twice"},
	} {
		_, err := parseList(strings.NewReader(tt.list))
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%q: error %v, want %q in it", tt.list, err, tt.want)
		}
	}
}

func TestCamel(t *testing.T) {
	for c, want := range map[string]string{
		"pd_handle":            "PDHandle",
		"create_cq_resp":       "CreateCQResp",
		"rxe_send_wr":          "RxeSendWR",
		"rxe_dma_info":         "RxeDMAInfo",
		"max_qp_init_rd_atom":  "MaxQPInitRDAtom",
		"imm_data":             "ImmData",
		"local_ca_ack_delay":   "LocalCAAckDelay",
		"node_guid":            "NodeGUID",
		"supported_qpts":       "SupportedQPTs",
		"max_raw_ipv6_qp":      "MaxRawIPv6QP",
		"sin6_scope_id":        "Sin6ScopeID",
		"_sockaddr_in":         "SockaddrIn",
		"mminfo":               "Mminfo",
		"log2_elem_size":       "Log2ElemSize",
		"cq__double":           "CQDouble",
		"2nd":                  "X2nd",
		"ex_create_rwq_ind_tb": "ExCreateRWQIndTb",
	} {
		if got := camel(c); got != want {
			t.Errorf("camel(%q) = %q, want %q", c, got, want)
		}
	}
}

func TestReserved(t *testing.T) {
	for c, want := range map[string]bool{
		"reserved": true, "reserved1": true, "reserved_2": true, "pad": true, "pad_1": true, "__pad": true,
		"padding": true, "cmd_hdr_reserved": true, "rsvd": true,
		"tfc_pad": false, "pads": false, "reserved_key": false, "p": false, "pad_size": false,
	} {
		if got := reserved(c); got != want {
			t.Errorf("reserved(%q) = %t, want %t", c, got, want)
		}
	}
}

func TestFileName(t *testing.T) {
	if got := fileName("rdma/ib_user_verbs.h"); got != "zib_user_verbs.go" {
		t.Errorf("file name %q", got)
	}
	if got := fileName("linux/in6.h"); got != "zin6.go" {
		t.Errorf("file name %q", got)
	}
}

package matrix

import (
	"fmt"
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"unicode"
)

// sourceTest is a kernel test as the source has it.
type sourceTest struct {
	suite, name, group, doc string
	marks                   []string // see marksOf
}

// suites are the packages with kernel tests. Those of test/suites/conformance are all of that
// kind; elsewhere it is the tests that use testenv, themselves or by functions that they call.
var suites = []string{"test/suites/conformance", "netlinkrdma", "cm", "cm/rdmacm", "test/suites/classic", "test/suites/interop", "tools/verbs/internal/perf"}

// titles name the groups whose file name does not say what they test.
var titles = map[string]string{
	"test/suites/conformance/argument_test.go":          "errors and misuse",
	"test/suites/conformance/async_test.go":             "asynchronous events",
	"test/suites/conformance/buffer_test.go":            "buffers",
	"test/suites/conformance/builder_test.go":           "SendBuilder",
	"test/suites/conformance/close_all_test.go":         "closing a device",
	"test/suites/conformance/close_race_test.go":        "concurrent use",
	"test/suites/conformance/closed_test.go":            "errors and misuse",
	"test/suites/conformance/concurrent_test.go":        "concurrent use",
	"test/suites/conformance/conformance_test.go":       "GID",
	"test/suites/conformance/connectx_window_test.go":   "memory windows",
	"test/suites/conformance/cq_test.go":                "CQ",
	"test/suites/conformance/cq_wait_test.go":           "completion events",
	"test/suites/conformance/datagram_test.go":          "datagrams and multicast",
	"test/suites/conformance/dc_test.go":                "dynamically connected transport",
	"test/suites/conformance/devx_test.go":              "commands to the firmware (DEVX)",
	"test/suites/conformance/dm_export_test.go":         "device memory",
	"test/suites/conformance/dm_test.go":                "device memory",
	"test/suites/conformance/dmabuf_test.go":            "MR",
	"test/suites/conformance/ece_test.go":               "options of enhanced connections (ECE)",
	"test/suites/conformance/event_test.go":             "completion events",
	"test/suites/conformance/fatal_test.go":             "device removal",
	"test/suites/conformance/fault_test.go":             "failed work requests",
	"test/suites/conformance/flow_test.go":              "flow steering",
	"test/suites/conformance/flush_test.go":             "failed work requests",
	"test/suites/conformance/gid_test.go":               "GID",
	"test/suites/conformance/gid_route_test.go":         "GID",
	"test/suites/conformance/handles_test.go":           "import",
	"test/suites/conformance/injected_test.go":          "injected device errors",
	"test/suites/conformance/inline_recv_test.go":       "receives inline in completions",
	"test/suites/conformance/iproute2_test.go":          "resources over netlink",
	"test/suites/conformance/iwarp_test.go":             "iWARP",
	"test/suites/conformance/iwarp_operation_test.go":   "iWARP",
	"test/suites/conformance/limit_test.go":             "limits",
	"test/suites/conformance/many_test.go":              "CQ",
	"test/suites/conformance/many_gids_test.go":         "GID",
	"test/suites/conformance/mr_kind_test.go":           "MR",
	"test/suites/conformance/mw_test.go":                "memory windows",
	"test/suites/conformance/netlink_test.go":           "resources over netlink",
	"test/suites/conformance/qp_counter_test.go":        "resources over netlink",
	"test/suites/conformance/vlan_test.go":              "GID",
	"test/suites/conformance/notify_test.go":            "completion events",
	"test/suites/conformance/objects_test.go":           "verbs that rxe does not support",
	"test/suites/conformance/odp_test.go":               "on-demand paging",
	"test/suites/conformance/odp_traffic_test.go":       "on-demand paging",
	"test/suites/conformance/open_error_test.go":        "errors and misuse",
	"test/suites/conformance/open_netdev_test.go":       "opening by network interface",
	"test/suites/conformance/operation_test.go":         "UC, atomics, flush",
	"test/suites/conformance/overflow_test.go":          "CQ",
	"test/suites/conformance/pd_test.go":                "protection domains",
	"test/suites/conformance/permission_test.go":        "errors and misuse",
	"test/suites/conformance/port_event_test.go":        "asynchronous events",
	"test/suites/conformance/post_test.go":              "QP states",
	"test/suites/conformance/post_error_test.go":        "errors and misuse",
	"test/suites/conformance/qp_event_test.go":          "asynchronous events",
	"test/suites/conformance/raw_packet_test.go":        "raw packets",
	"test/suites/conformance/frames_test.go":            "raw packets",
	"test/suites/conformance/out_of_order_test.go":      "receive order",
	"test/suites/conformance/recv_order_test.go":        "receive order",
	"test/suites/conformance/register_test.go":          "UARs and thread domains",
	"test/suites/conformance/removal_test.go":           "device removal",
	"test/suites/conformance/rereg_test.go":             "MR",
	"test/suites/conformance/resize_test.go":            "CQ",
	"test/suites/conformance/size_test.go":              "limits",
	"test/suites/conformance/srq_traffic_test.go":       "SRQ",
	"test/suites/conformance/state_test.go":             "QP states",
	"test/suites/conformance/mistakes_test.go":          "mistakes, and what the errors say",
	"test/suites/conformance/sysfs_test.go":             "without sysfs",
	"test/suites/conformance/threads_test.go":           "concurrent use",
	"test/suites/conformance/timestamp_test.go":         "completion timestamps",
	"test/suites/conformance/transfer_test.go":          "data transfer",
	"test/suites/conformance/transport_test.go":         "transport types",
	"test/suites/conformance/ud_test.go":                "datagrams and multicast",
	"test/suites/conformance/unreachable_test.go":       "errors and misuse",
	"test/suites/conformance/walk_test.go":              "random operations",
	"test/suites/conformance/window_test.go":            "memory windows",
	"test/suites/conformance/window_bind_test.go":       "memory windows",
	"test/suites/conformance/window_invalidate_test.go": "memory windows",
	"test/suites/conformance/window_use_test.go":        "memory windows",

	"cm/attack_test.go":                         "connections: hostile peers",
	"cm/conn_ece_test.go":                       "connections: ECE",
	"cm/conn_test.go":                           "connections",
	"cm/dial_test.go":                           "connections: dialing",
	"cm/fault_test.go":                          "connections: failures",
	"cm/iwarp_fault_test.go":                    "connections: iWARP",
	"cm/iwarp_test.go":                          "connections: iWARP",
	"cm/limits_test.go":                         "connections: limits",
	"cm/load_test.go":                           "connections: load",
	"cm/memory_test.go":                         "connections: memory",
	"cm/open_dial_test.go":                      "connections: opening",
	"cm/packet_test.go":                         "PacketConn",
	"cm/removal_test.go":                        "connections: device removal",
	"cm/stream_test.go":                         "streams",
	"cm/user_test.go":                           "connections: credentials",
	"cm/window_test.go":                         "connections: flow control",
	"cm/rdmacm/backlog_test.go":                 "connection manager: waiting",
	"cm/rdmacm/bond_test.go":                    "connections over a bond",
	"cm/rdmacm/concurrency_id_test.go":          "connection manager: concurrent use",
	"cm/rdmacm/gid_test.go":                     "connections by GID",
	"cm/rdmacm/group_test.go":                   "connection manager: multicast",
	"cm/rdmacm/kernel_test.go":                  "connection manager",
	"cm/rdmacm/open_test.go":                    "connection manager: opening",
	"cm/rdmacm/path_test.go":                    "connection manager: paths and port spaces",
	"cm/rdmacm/service_test.go":                 "connection manager: events and services",
	"cm/rdmacm/steps_test.go":                   "connection manager: single steps",
	"cm/rdmacm/wait_test.go":                    "connection manager: waiting",
	"netlinkrdma/kernel_test.go":                "netlink",
	"netlinkrdma/resource_kernel_test.go":       "netlink",
	"netlinkrdma/monitor_kernel_test.go":        "netlink",
	"test/suites/classic/classic_test.go":       "classic programs",
	"test/suites/interop/cm_test.go":            "interoperability with rdma-core",
	"test/suites/interop/doctor_test.go":        "verbs doctor",
	"test/suites/interop/interop_test.go":       "interoperability with rdma-core",
	"test/suites/interop/iwarp_ports_test.go":   "iWARP ports",
	"test/suites/interop/mixed_test.go":         "several drivers in one machine",
	"test/suites/interop/perf_dc_test.go":       "verbs perf",
	"test/suites/interop/sandbox_test.go":       "sandboxes",
	"test/suites/interop/perf_host_test.go":     "verbs perf",
	"test/suites/interop/perf_options_test.go":  "verbs perf",
	"test/suites/interop/ece_test.go":           "interoperability with rdma-core",
	"test/suites/interop/perf_test.go":          "verbs perf",
	"test/suites/interop/perftest_test.go":      "interoperability with perftest",
	"test/suites/interop/rping_test.go":         "interoperability with rdma-core",
	"test/suites/interop/two_languages_test.go": "interoperability with rdma-core",
	"tools/verbs/internal/perf/kernel_test.go":  "verbs perf",
}

// group names the group of the tests in a file.
func group(path string) string {
	if t := titles[path]; t != "" {
		return t
	}
	base := strings.ReplaceAll(strings.TrimSuffix(filepath.Base(path), "_test.go"), "_", " ")
	if len(base) <= 3 {
		return strings.ToUpper(base) // cq, mr, ah
	}
	return base
}

// kernelTests reads the kernel tests from the source, sorted by suite, group and place.
func kernelTests(root string) ([]sourceTest, error) {
	var all []sourceTest
	for _, suite := range suites {
		files, err := filepath.Glob(filepath.Join(root, suite, "*_test.go"))
		if err != nil {
			return nil, err
		}
		var tests []sourceTest
		parsed := map[string]*ast.File{}
		for _, file := range files {
			if parsed[file], err = parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments|parser.SkipObjectResolution); err != nil {
				return nil, err
			}
		}
		guests := guestFuncs(slices.Collect(maps.Values(parsed)))
		for _, file := range files {
			for _, d := range parsed[file].Decls {
				fn, ok := d.(*ast.FuncDecl)
				if !ok || !isTest(fn) || suite != suites[0] && !guests[fn.Name.Name] {
					continue
				}
				tests = append(tests, sourceTest{
					suite: filepath.Base(suite),
					name:  fn.Name.Name,
					group: group(suite + "/" + filepath.Base(file)),
					doc:   new(doc.Package).Synopsis(fn.Doc.Text()),
					marks: marksOf(fn),
				})
			}
		}
		slices.SortStableFunc(tests, func(a, b sourceTest) int {
			return strings.Compare(strings.ToLower(a.group), strings.ToLower(b.group))
		})
		all = append(all, tests...)
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("no kernel tests below %s", root)
	}
	return all, nil
}

// guestFuncs finds the functions of a package's tests that use testenv, themselves or by
// others that they name.
func guestFuncs(files []*ast.File) map[string]bool {
	guests, names := map[string]bool{}, map[string][]string{}
	for _, f := range files {
		for _, d := range f.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok || fn.Recv != nil || fn.Body == nil {
				continue
			}
			ast.Inspect(fn.Body, func(n ast.Node) bool {
				if id, ok := n.(*ast.Ident); ok {
					names[fn.Name.Name] = append(names[fn.Name.Name], id.Name)
				}
				return true
			})
		}
	}
	guests["testenv"] = true // the package
	for more := true; more; {
		more = false
		for fn, used := range names {
			if !guests[fn] && slices.ContainsFunc(used, func(name string) bool { return guests[name] }) {
				guests[fn], more = true, true
			}
		}
	}
	return guests
}

// marksOf returns by name the tags that a test gets from testenv, and the functions of testenv that it
// calls itself.
func marksOf(fn *ast.FuncDecl) (marks []string) {
	ast.Inspect(fn.Body, func(n ast.Node) bool {
		if sel, ok := n.(*ast.SelectorExpr); ok {
			if x, ok := sel.X.(*ast.Ident); ok && x.Name == "testenv" {
				marks = append(marks, sel.Sel.Name)
			}
		}
		return true
	})
	return marks
}

// Marked returns the names of the tests in a folder by their marks: the tags of testenv that they have, and
// the functions of testenv that they call, such as Perftest and Mixed.
func Marked(folder string) (tests map[string][]string, err error) {
	files, err := filepath.Glob(filepath.Join(folder, "*_test.go"))
	if err != nil {
		return nil, err
	}
	tests = map[string][]string{}
	for _, file := range files {
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		for _, d := range f.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok || !isTest(fn) {
				continue
			}
			for _, mark := range marksOf(fn) {
				if !slices.Contains(tests[mark], fn.Name.Name) {
					tests[mark] = append(tests[mark], fn.Name.Name)
				}
			}
		}
	}
	return tests, nil
}

// isTest reports whether a function is a test.
func isTest(fn *ast.FuncDecl) bool {
	rest, ok := strings.CutPrefix(fn.Name.Name, "Test")
	return fn.Recv == nil && ok && rest != "Main" && rest != "" && unicode.IsUpper(rune(rest[0])) && fn.Type.Params.NumFields() == 1
}

var (
	plural    = regexp.MustCompile(`([A-Z]{2})s([A-Z]|$)`)
	wordBegin = regexp.MustCompile(`([a-z0-9_])([A-Z])`)
	acronym   = regexp.MustCompile(`([A-Z])([A-Z][a-z])`)
)

// feature spells a test's name in words: TestRegMRAt is "Reg MR at", TestManyQPs "Many QPs".
func feature(test string) string {
	s := strings.TrimPrefix(strings.TrimPrefix(test, "Test"), "Kernel") // all are tests of the kernel
	s = plural.ReplaceAllString(s, "${1}_${2}")
	s = wordBegin.ReplaceAllString(s, "$1 $2")
	s = acronym.ReplaceAllString(s, "$1 $2")
	words := strings.Fields(strings.ReplaceAll(s, "_", "s"))
	for i, w := range words {
		if w == "IWARP" { // Go names begin with a capital letter
			words[i] = "iWARP"
		} else if i > 0 && len(w) > 1 && unicode.IsLower(rune(w[1])) && w[1:] != "s" {
			words[i] = strings.ToLower(w)
		}
	}
	return strings.Join(words, " ")
}

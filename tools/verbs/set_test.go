package main

import (
	"bytes"
	"slices"
	"strings"
	"testing"
)

// TestSetRefused: an error names a wrong word or value and the allowed ones, without a request to
// the kernel.
func TestSetRefused(t *testing.T) {
	for _, c := range []struct{ args, want string }{
		{"link remove x", `the command of verbs link is "remove", allowed: add, delete`},
		{"link add", "arguments are missing; usage: verbs link add [flags] NAME type rxe|siw netdev NETDEV"},
		{"link add x type rxe", "netdev is missing; usage: verbs link add"},
		{"link add x type foo netdev lo", `type is "foo", allowed: rxe, siw`},
		{"link add x type rxe type rxe netdev lo", "type is given twice"},
		{"link add x kind rxe netdev lo", `a word of verbs link add is "kind", allowed: type, netdev`},
		{"link delete", "arguments are missing"},
		{"link delete a b", `the arguments of verbs link delete are "a b", allowed: at most 1`},
		{"dev set x", "arguments are missing"},
		{"dev set x name", "arguments are missing"},
		{"dev set x netns a name", "name has no value"},
		{"dev set x adaptive-moderation yes", `adaptive-moderation is "yes", allowed: off, on`},
		{"system remove", `the command of verbs system is "remove", allowed: set, show`},
		{"system set netns both", `netns is "both", allowed: exclusive, shared`},
		{"system set privileged-qkey 1", `privileged-qkey is "1", allowed: off, on`},
		{"stat bind x/1 lqpn x", `lqpn is "x", allowed: 0 to 4294967295`},
		{"stat bind x/1 lqpn 5 cntn q", `cntn is "q", allowed: 0 to 4294967295`},
		{"stat unbind x/1 lqpn 5", "cntn is missing"},
		{"stat auto x/0 off", `the port of "x/0" is "0", allowed: a number from 1`},
		{"stat auto x/1 qpn", `the grouping is "qpn", allowed: off, pid, pid,type, type, type,pid`},
		{"status x/y", `the port of "x/y" is "y", allowed: a number from 1`},
		{"info x/", `the port of "x/" is "", allowed: a number from 1`},
	} {
		_, err := run(t, strings.Fields(c.args)...)
		if exitStatus(err) != 2 || !strings.Contains(err.Error(), c.want) {
			t.Errorf("verbs %s: status %d, %v, want %q", c.args, exitStatus(err), err, c.want)
		}
	}
}

// TestStatusErrors: of all counters, those of errors are kept that are not 0, each once.
func TestStatusErrors(t *testing.T) {
	r := statusRow{Device: "x0", Port: 1, State: "ACTIVE", Width: 4, Rate: 100, MTU: 4096, LID: 3, GIDs: []string{"fe80::1", "10.1.0.1"}}
	r.addErrors([]counterRow{{"local_ack_timeout_err", 3}, {"rx_write_requests", 5}, {"out_of_buffer", 1}})
	r.addErrors([]counterRow{{"symbol_error", 7}, {"link_downed", 0}, {"port_xmit_data", 9}, {"local_ack_timeout_err", 3}})
	if want := []counterRow{{"local_ack_timeout_err", 3}, {"out_of_buffer", 1}, {"symbol_error", 7}}; !slices.Equal(r.Errors, want) {
		t.Errorf("errors are %v, want %v", r.Errors, want)
	}
	var out bytes.Buffer
	if err := printStatus(&out, []statusRow{r, {Device: "y0", Port: 2, Reason: "no rights"}}); err != nil {
		t.Fatal(err)
	}
	var lines []string
	for line := range strings.Lines(out.String()) {
		lines = append(lines, strings.Join(strings.Fields(line), " "))
	}
	want := []string{"port state physical rate link layer netdev MTU LID errors GIDs",
		"x0/1 ACTIVE - 100 Gb/s (4X) - - 4096 3 11 fe80::1 10.1.0.1", "y0/2 - - - - - 0 - 0 not known: no rights"}
	if !slices.Equal(lines, want) {
		t.Errorf("the table is %q", lines)
	}
}

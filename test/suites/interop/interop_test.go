package interop

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/goverbs/goverbs/test/internal/program"
	"github.com/goverbs/goverbs/test/testenv"
)

// timed returns a context for a pair.
func timed(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), program.Patience)
	t.Cleanup(cancel)
	return ctx
}

// atPace returns the options of a ping-pong with a tenth of the exchanges in a brief run.
func atPace(brief bool, options []string) []string {
	const byDefault = 1000
	if !brief {
		return options
	}
	n := byDefault
	if i := slices.Index(options, "-n"); i >= 0 {
		n, _ = strconv.Atoi(options[i+1])
	}
	return append(slices.Clone(options), "-n", strconv.Itoa(n/10)) // the last counts
}

func TestPingpong(t *testing.T) {
	testenv.Guest(t)
	testenv.NeedsIB(t, "manual QP state changes")
	pairs := []struct {
		name           string
		server, client []string
	}{
		{"verbs-verbs", Verbs(), Verbs()},
		{"rdma-core server", rdmaCore, Verbs()},
		{"rdma-core client", Verbs(), rdmaCore},
	}
	for i, options := range [][]string{
		nil,
		{"-e", "-n", "300"},
		{"-s", "1", "-n", "300"},
		{"-s", "65536", "-n", "100"},
		{"-c", "-s", "20000", "-n", "100"},
		{"-m", "256", "-r", "10", "-n", "200"},
		{"-e", "-r", "2", "-s", "100", "-n", "200"},
	} {
		if i == 1 && testenv.Brief() && !testenv.Slow() {
			pairs = pairs[1:] // only with rdma-core from here on
		}
		for _, p := range pairs {
			t.Run(strings.Join(append([]string{p.name}, options...), " "), func(t *testing.T) {
				r, err := Play(timed(t), p.server, p.client, atPace(testenv.Brief(), options)...)
				must(t, err)
				if strings.Contains(r.Server+r.Client, "invalid data") {
					t.Errorf("data did not arrive:\n%s\n%s", r.Server, r.Client)
				}
				t.Logf("server %.1f, client %.1f µs per iteration", r.ServerTime, r.ClientTime)
			})
		}
	}
}

// ofType returns the command lines of a type of ping-pong: ours and that of rdma-core's program. On
// InfiniBand they play by LID, and TestPingpong by GID.
func ofType(typ, program string) (ours, theirs []string) {
	ours, theirs = append(Verbs(), "--type", typ), []string{program}
	if !rig.InfiniBand() {
		theirs = append(theirs, rdmaCore[1:]...)
	}
	return ours, theirs
}

// TestPingpongTypes plays with rdma-core's other programs, in both roles.
func TestPingpongTypes(t *testing.T) {
	testenv.Guest(t)
	testenv.NeedsIB(t, "manual QP state changes")
	for _, c := range []struct {
		typ, program string
		options      []string
	}{
		{"uc", "ibv_uc_pingpong", []string{"-n", "300"}},
		{"uc", "ibv_uc_pingpong", []string{"-n", "200", "-e", "-s", "20000"}},
		{"ud", "ibv_ud_pingpong", []string{"-n", "300", "-s", "1000"}},
		{"ud", "ibv_ud_pingpong", []string{"-n", "200", "-e", "-s", "1"}},
		{"rc", "ibv_rc_pingpong", []string{"-n", "300"}},
		{"srq", "ibv_srq_pingpong", []string{"-n", "500"}},
		{"srq", "ibv_srq_pingpong", []string{"-n", "300", "-e", "-q", "1"}},
		{"srq", "ibv_srq_pingpong", []string{"-n", "300", "-c", "-s", "20000", "-q", "5", "-r", "6"}},
		{"srq", "ibv_srq_pingpong", []string{"-n", "600", "-q", "255", "-s", "64"}},
	} {
		ours, theirs := ofType(c.typ, c.program)
		for name, p := range map[string][2][]string{"server": {theirs, ours}, "client": {ours, theirs}} {
			t.Run(fmt.Sprintf("%s %s as %s", strings.Join(c.options, " "), c.program, name), func(t *testing.T) {
				r, err := Play(timed(t), p[0], p[1], atPace(testenv.Brief(), c.options)...)
				must(t, err)
				if strings.Contains(r.Server+r.Client, "invalid data") {
					t.Errorf("data did not arrive:\n%s\n%s", r.Server, r.Client)
				}
				if rig.InfiniBand() && strings.Contains(r.Server+r.Client, "GID fe80") {
					t.Errorf("they do not play by LID:\n%s\n%s", r.Server, r.Client)
				}
			})
		}
	}
}

// TestPingpongXRC plays with rdma-core's ibv_xsrq_pingpong, in both roles.
func TestPingpongXRC(t *testing.T) {
	testenv.Guest(t)
	testenv.NeedsIB(t, "manual QP state changes")
	testenv.Needs(t, "XRC", "mlx5")
	ours, theirs := ofType("xrc", "ibv_xsrq_pingpong")
	for _, options := range [][]string{{"-n", "5"}, {"-n", "100", "-e", "-s", "20000"}, {"-n", "100", "-m", "256", "-s", "1"}} {
		for name, p := range map[string][2][]string{"server": {theirs, ours}, "client": {ours, theirs}} {
			t.Run(fmt.Sprintf("%s rdma-core as %s", strings.Join(options, " "), name), func(t *testing.T) {
				r, err := runPair(timed(t), p[0], p[1], options...)
				must(t, err)
				if all := r.Server + r.Client; strings.Count(all, "usec/iter") != 1 || strings.Count(all, "success") != 1 {
					t.Errorf("one side did not play:\n%s\n%s", r.Server, r.Client)
				}
			})
		}
		t.Run(strings.Join(options, " ")+" verbs-verbs", func(t *testing.T) {
			if _, err := Play(timed(t), ours, ours, options...); err != nil {
				t.Error(err)
			}
		})
	}
}

// cycles finds what a ping-pong with time stamps prints.
var cycles = regexp.MustCompile(`Max receive completion clock cycles = (\d+)\nMin receive completion clock cycles = (\d+)\nAverage receive completion clock cycles = (\d+)\.\d{6}\n`)

// TestPingpongMemory plays with ibv_rc_pingpong in memory that is on demand and in that of the device, and with time
// stamps, in both roles. A trace shows that our side asks the kernel for it. ibv_rc_pingpong of rdma-core 44 crashes when
// device memory has a message that could be inline, copies only multiples of 4 bytes into it, and ends with an error when
// an event comes without a completion and it has time stamps.
func TestPingpongMemory(t *testing.T) {
	testenv.Guest(t)
	testenv.NeedsIB(t, "manual QP state changes")
	testenv.Needs(t, "device memory, on-demand paging and time stamps", "mlx5")
	for _, c := range []struct{ options, calls string }{
		{"-j -c -s 20000", "allocate DM,register MR of DM"},
		{"-j -e -s 4000", "allocate DM,register MR of DM"},
		{"-o -P -c -s 20000", "advise MR"},
		{"-O -c -s 20000", "register MR"},
		{"-O -P -c -e -s 20000", "advise MR"},
		{"-t", "create CQ"},
		{"-t -s 1", "create CQ"},
	} {
		for _, we := range []string{"server", "client"} {
			t.Run(c.options+" as "+we, func(t *testing.T) {
				ours := trace(t, append(Verbs(), "-d", dev0)...)
				server, client := ours.line, append(rdmaCore[:len(rdmaCore):len(rdmaCore)], "-d", dev0)
				if we == "client" {
					server, client = client, server
				}
				r, err := Play(timed(t), server, client, append(strings.Fields(c.options), "-n", "100")...)
				must(t, err)
				if strings.Contains(r.Server+r.Client, "invalid data") || strings.Contains(r.Server+r.Client, "Couldn't") {
					t.Errorf("data did not arrive:\n%s\n%s", r.Server, r.Client)
				}
				calls := ours.show(t)
				has(t, calls, strings.Split(c.calls, ",")...)
				for _, call := range calls {
					if call.Verb != "register MR" {
						continue
					}
					length := fmt.Sprint(call.Payloads[0].Fields["length"])
					if all := length == fmt.Sprint(float64(math.MaxUint64)); all != strings.Contains(c.options, "-O") {
						t.Errorf("%s bytes are registered: %+v", length, call)
					}
				}
				for _, out := range []string{r.Server, r.Client} {
					m := cycles.FindStringSubmatch(out)
					if (m != nil) != strings.Contains(c.options, "-t") {
						t.Errorf("time stamps: %q\n%s", m, out)
					} else if m != nil {
						longest, shortest, average := number(t, m[1]), number(t, m[2]), number(t, m[3])
						if shortest == 0 || average < shortest || longest < average || longest == shortest {
							t.Errorf("cycles are not from %d by %d to %d:\n%s", shortest, average, longest, out)
						}
					}
				}
			})
		}
	}
	for options, want := range map[string]string{
		"-o --type ud":     "on-demand paging (--odp, --iodp) with --type ud not supported by driver mlx5: " + dev0,
		"-j -s 2000000000": "--size is 2000000000, allowed: 1 to ",
	} {
		out, err := exec.CommandContext(timed(t), Verbs()[0], line(Verbs()[1:], append(strings.Fields(options), "-d", dev0)...)...).CombinedOutput()
		if err == nil || !strings.Contains(string(out), want) {
			t.Errorf("%s: %v, want %q: %s", options, err, want, out)
		}
	}
}

// TestPingpongIWARP: the ping-pong, which connects its QPs itself, says what does it on iWARP.
func TestPingpongIWARP(t *testing.T) {
	testenv.Guest(t)
	testenv.Needs(t, "iWARP", "siw")
	for _, host := range [][]string{nil, {ServerAddr}} {
		out, err := exec.CommandContext(timed(t), Verbs()[0], line(Verbs()[1:], host...)...).CombinedOutput()
		if want := dev0 + " is an iWARP device"; err == nil || !strings.Contains(string(out), want) {
			t.Errorf("%v, want %q: %s", err, want, out)
		}
	}
}

// TestPingpongCommandPaths runs verbs' ping-pong with each command path.
func TestPingpongCommandPaths(t *testing.T) {
	testenv.Tags(t, testenv.AnyCard)
	testenv.Guest(t)
	testenv.NeedsIB(t, "manual QP state changes")
	for _, path := range []string{"ioctl", "write"} {
		all := [][]string{{"-n", "100"}, {"-n", "100", "-e"}}
		if testenv.Brief() && !testenv.Slow() {
			all = all[1:]
		}
		for _, options := range all {
			t.Run(path+" "+strings.Join(options, " "), func(t *testing.T) {
				t.Setenv("RDMAABI", path)
				if _, err := Play(timed(t), rdmaCore, Verbs(), atPace(testenv.Brief(), options)...); err != nil {
					t.Error(err)
				}
				if _, err := Play(timed(t), Verbs(), rdmaCore, atPace(testenv.Brief(), options)...); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// TestPingpongTwoDevices plays ping-pong between the two devices. By IPv4 only: both ends of the
// VM's veth pair are in one network namespace, where the kernel drops IPv6 packets from one of its
// own addresses.
func TestPingpongTwoDevices(t *testing.T) {
	testenv.Guest(t)
	testenv.NeedsIB(t, "manual QP state changes")
	testenv.Needs(t, "way between two devices of one machine", "rxe")
	ours := append(Verbs(), "-d", dev1, "-g", strconv.Itoa(rig.GID))
	theirs := append(slices.Clone(rdmaCore), "-d", dev0)
	options := atPace(testenv.Brief(), []string{"-n", "300"})
	if _, err := Play(timed(t), ours, theirs, options...); err != nil {
		t.Error(err)
	}
	if _, err := Play(timed(t), theirs, ours, options...); err != nil {
		t.Error(err)
	}
}

// TestChosenGID leaves the GID to the library, on both sides and against an IPv6 peer.
func TestChosenGID(t *testing.T) {
	testenv.Guest(t)
	testenv.NeedsIB(t, "GIDs")
	testenv.NeedsRoCE(t, "GIDs of IP addresses")
	options := atPace(testenv.Brief(), []string{"-n", "100"})
	r, err := Play(timed(t), Verbs(), rdmaCore6, options...)
	must(t, err)
	if !strings.Contains(r.Server, "GID fd00:1::1") {
		t.Errorf("the server did not choose the GID of the peer's family:\n%s", r.Server)
	}
	r, err = Play(timed(t), Verbs(), Verbs(), options...)
	must(t, err)
	if !strings.Contains(r.Client, "GID 10.1.0.1") {
		t.Errorf("the client did not choose the IPv4 GID:\n%s", r.Client)
	}
}

// TestPeerKilled kills one end in the middle: the other ends with the peer's address.
func TestPeerKilled(t *testing.T) {
	testenv.Tags(t, testenv.AnyCard)
	testenv.Guest(t)
	testenv.NeedsIB(t, "manual QP state changes")
	for _, options := range [][]string{nil, {"-e"}} {
		t.Run(cmp.Or(strings.Join(options, " "), "defaults"), func(t *testing.T) {
			t.Parallel()
			port := strconv.Itoa(20000 + int(nextPort.Add(1)))
			args := append([]string{"pingpong", "-p", port, "-n", "100000000", "--timeout", "3s"}, options...)
			server := exec.CommandContext(timed(t), Verbs()[0], args...)
			must(t, server.Start())
			ended := make(chan error, 1)
			go func() { ended <- server.Wait() }()
			portNumber, _ := strconv.Atoi(port)
			must(t, waitListen(timed(t), portNumber, ended))
			time.AfterFunc(2*time.Second, func() { server.Process.Signal(syscall.SIGKILL) }) // the client is there by then
			out, err := exec.CommandContext(timed(t), Verbs()[0], append(args, ServerAddr)...).CombinedOutput()
			if err == nil {
				t.Fatalf("the client does not notice:\n%s", out)
			}
			text, peer := string(out), "10.1.0.1"
			if rig.InfiniBand() {
				peer = "peer LID 1 "
			}
			if !strings.Contains(text, peer) || !strings.Contains(text, "retry") && !strings.Contains(text, "nothing completed") {
				t.Errorf("the client does not say which peer is gone, and how:\n%s", text)
			}
			<-ended
		})
	}
}

// TestWrongHost gives the client hosts without a server.
func TestWrongHost(t *testing.T) {
	testenv.Guest(t)
	testenv.NeedsIB(t, "manual QP state changes")
	for host, want := range map[string]string{
		"10.1.0.1":             "no pingpong server at 10.1.0.1:18515",
		"no-such-host.invalid": "no-such-host.invalid",
	} {
		out, err := exec.CommandContext(timed(t), Verbs()[0], "pingpong", host).CombinedOutput()
		if err == nil || !strings.Contains(string(out), want) {
			t.Errorf("host %s: %v, output %q, want %q in it", host, err, out, want)
		}
	}
}

// TestInfo compares what "verbs info" tells with ibv_devinfo.
func TestInfo(t *testing.T) {
	testenv.Guest(t)
	theirs, err := exec.CommandContext(timed(t), "ibv_devinfo", "-v", "-d", dev0).Output()
	must(t, err)
	ours, err := exec.CommandContext(timed(t), Verbs()[0], "info", dev0).Output()
	must(t, err)
	facts := func(out []byte) map[string]string {
		m := map[string]string{}
		for line := range strings.Lines(string(out)) {
			if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
				first, rest, _ := strings.Cut(strings.TrimSpace(value), " ")
				if first == "invalid" { // ibv_devinfo of a number that it does not know: "invalid value (0)"
					first = strings.Trim(rest, "value ()")
				}
				m[name] = first
			}
		}
		return m
	}
	our, their := facts(ours), facts(theirs)
	maps.Copy(their, devinfoCaps(string(theirs)))
	for _, name := range []string{
		"general_odp_caps", "rc_odp_caps", "uc_odp_caps", "ud_odp_caps", "xrc_odp_caps", "completion_timestamp_mask", "hca_core_clock",
		"raw_packet_caps", "max_rwq_indirection_tables", "max_rwq_indirection_table_size", "max_wq_type_rq", "max_cq_count", "max_cq_period",
		"tm_max_num_tags",
		"node_guid", "sys_image_guid", "vendor_id", "vendor_part_id", "hw_ver", "phys_port_cnt", "max_mr_size", "page_size_cap",
		"max_qp", "max_qp_wr", "device_cap_flags", "max_sge", "max_sge_rd", "max_cq", "max_cqe", "max_mr", "max_pd", "max_qp_rd_atom",
		"max_res_rd_atom", "max_qp_init_rd_atom", "atomic_cap", "max_mw", "max_mcast_grp", "max_mcast_qp_attach",
		"max_total_mcast_qp_attach", "max_ah", "max_srq", "max_srq_wr", "max_srq_sge", "max_pkeys", "local_ca_ack_delay",
		"state", "max_mtu", "active_mtu", "sm_lid", "port_lid", "port_lmc", "link_layer", "max_msg_sz", "port_cap_flags",
		"max_vl_num", "bad_pkey_cntr", "qkey_viol_cntr", "sm_sl", "pkey_tbl_len", "gid_tbl_len", "subnet_timeout", "init_type_reply",
		"active_width", "active_speed", "phys_state", "num_comp_vectors",
	} {
		none := name == "phys_state" && rig.IWARP() // soft iWARP does not have it
		if their[name] == "" && !none {
			t.Errorf("ibv_devinfo does not tell %s", name)
		} else if their[name] != "" && our[name] != their[name] {
			t.Errorf("%s is %q, ibv_devinfo says %q", name, our[name], their[name])
		}
	}
}

// devinfoCaps reads what ibv_devinfo -v has in words, or says nothing of where it is 0.
func devinfoCaps(out string) map[string]string {
	m := map[string]string{"raw_packet_caps": "0x0", "max_cq_count": "0", "max_cq_period": "0"}
	transport := []string{"SUPPORT_SEND", "SUPPORT_RECV", "SUPPORT_WRITE", "SUPPORT_READ", "SUPPORT_ATOMIC", "SUPPORT_SRQ"}
	bits := map[string][]string{
		"general_odp_caps": {"ODP_SUPPORT", "ODP_SUPPORT_IMPLICIT"},
		"rc_odp_caps":      transport,
		"uc_odp_caps":      transport,
		"ud_odp_caps":      transport,
		"xrc_odp_caps":     transport,
		"raw_packet_caps":  {"C-VLAN stripping offload", "Scatter FCS offload", "IP csum offload", "Delay drop"},
	}
	var section string
	var mask uint64
	for line := range strings.Lines(out) {
		indented := strings.HasPrefix(line, "\t\t\t")
		line = strings.TrimSpace(line)
		name, value, _ := strings.Cut(line, ":")
		value = strings.TrimSpace(value)
		switch name = strings.ReplaceAll(name, " ", "_"); {
		case !indented && bits[name] != nil:
			section, mask = name, 0
			m[section] = "0x0"
		case !indented:
			section = ""
		case section != "" && name == "Unknown_flags":
			unknown, _ := strconv.ParseUint(value, 0, 64)
			mask |= unknown
		case section != "":
			if i := slices.Index(bits[section], line); i >= 0 {
				mask |= 1 << i
			}
		}
		if section != "" {
			m[section] = fmt.Sprintf("0x%x", mask)
		}
		switch {
		case name == "completion_timestamp_mask": // 0x and 16 digits
			n, _ := strconv.ParseUint(value, 0, 64)
			m[name] = fmt.Sprintf("0x%x", n)
		case name == "hca_core_clock":
			m[name] = strings.TrimSuffix(value, "kHZ")
		case name == "tag_matching_not_supported":
			m["tm_max_num_tags"] = "0"
		case line == "completion_timestamp_mask not supported":
			m["completion_timestamp_mask"] = "0x0"
		case line == "core clock not supported":
			m["hca_core_clock"] = "0"
		case name == "max_cq_count", name == "max_cq_period":
			m[name], _, _ = strings.Cut(value, " ")
		}
	}
	return m
}

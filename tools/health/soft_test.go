package health

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"

	"github.com/goverbs/goverbs/netlinkrdma"
	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/soft"
)

// must fails a test on an error.
var must = testenv.Must

// softPatient is a machine whose only device is in software, on an address that other hosts reach.
func softPatient(t *testing.T) (patient, *softFacts) {
	p := healthy(t)
	*p.info = uverbs.DeviceInfo{Name: "soft0", Driver: "rxe", Protocol: "roce", Ports: 1, InProcess: true}
	facts := &softFacts{
		setting: "10.1.0.1", addr: netip.MustParseAddr("10.1.0.1"), hostAddrs: []string{"10.1.0.1 of eth0"},
		NetworkInfo: soft.NetworkInfo{Local: netip.MustParseAddrPort("10.1.0.1:4791"), ReceiveBuffer: 8 << 20, WantedBuffer: 8 << 20},
	}
	p.devices = func() ([]netlinkrdma.Device, error) { return nil, syscall.EPROTONOSUPPORT }
	p.cmDev = func() (netlinkrdma.CharDev, error) { return netlinkrdma.CharDev{}, syscall.EPROTONOSUPPORT }
	p.uverbsDev = func(netlinkrdma.Device) (netlinkrdma.CharDev, error) {
		return netlinkrdma.CharDev{}, syscall.EPROTONOSUPPORT
	}
	p.soft = func(string) softFacts { return *facts }
	p.probeSoft = func(context.Context, string) (bool, error) { return true, nil }
	return p, facts
}

// TestSoftFindings: each machine has its finding.
func TestSoftFindings(t *testing.T) {
	buffer := func(n int) func(patient, *softFacts) {
		return func(p patient, f *softFacts) {
			f.ReceiveBuffer, f.Overflows = n, 12
			p.files["proc/sys/net/core/rmem_max"] = charFile(0, 0, 0, 0)
			p.files["proc/sys/net/core/rmem_max"].Mode, p.files["proc/sys/net/core/rmem_max"].Data = 0o444, []byte("212992\n")
		}
	}
	datagram := func(arrived bool, err error) func(patient, *softFacts) {
		return func(p patient, _ *softFacts) {
			p.probeSoft = func(context.Context, string) (bool, error) { return arrived, err }
			p.files["proc/modules"].Data = []byte("nf_tables 1 0 - Live 0x0\nip_tables 1 0 - Live 0x0\n")
		}
	}
	at := func(addr string) func(patient, *softFacts) {
		return func(_ patient, f *softFacts) { f.Local = netip.MustParseAddrPort(addr) }
	}
	for _, c := range []struct {
		name  string
		ill   func(patient, *softFacts)
		works bool
		id    Code
		level Level
		words []string
	}{
		{"healthy", func(patient, *softFacts) {}, true, "device", LevelOK, []string{"a software device, inside this process", `GOVERBS_SOFT="10.1.0.1"`, "needs no module"}},
		{"reached by others", func(patient, *softFacts) {}, true, "address", LevelOK, []string{"other hosts reach it at 10.1.0.1:4791", "10.1.0.1 of eth0", "packets of RoCE v1 are no UDP"}},
		{"loopback address", at("127.0.0.2:4791"), true, "address", LevelInfo, []string{"other hosts do not", "GOVERBS_SOFT=ADDRESS"}},
		{"other port", at("10.1.0.1:4792"), true, "address", LevelOK, []string{"sends to port 4792", "(4791)"}},
		{"port where 4791 is taken", at("127.0.0.1:14791"), true, "address", LevelInfo, []string{"sends to port 14791", "such as by rdma_rxe", "reach it at 127.0.0.1:14791"}},
		{"a device with the other port", func(p patient, f *softFacts) {
			at("127.0.0.1:4791")(p, f)
			f.stranded = netip.MustParseAddrPort("127.0.0.2:14791")
		}, true, "address", LevelWarning, []string{"a device at 127.0.0.2:14791", "while port 4791 was taken", "start the program"}},
		{"no socket", func(_ patient, f *softFacts) { f.NetworkInfo = soft.NetworkInfo{} }, true, "address", LevelInfo, []string{"only this process", "GOVERBS_SOFT=auto"}},
		{"whole buffer", func(patient, *softFacts) {}, true, "receive_buffer", LevelOK, []string{"8 MiB"}},
		{"small buffer", buffer(425984), true, "receive_buffer", LevelWarning, []string{"416 KiB is too small", "1056 KiB", "212992 bytes", "so far since the buffer was full: 12", "sysctl net.core.rmem_max=4194304"}},
		{"half a buffer", buffer(4 << 20), true, "receive_buffer", LevelInfo, []string{"for the packets of 3 QPs", "sysctl net.core.rmem_max=4194304"}},
		{"no firewall", func(patient, *softFacts) {}, true, "firewall", LevelInfo, []string{"must do so from peers", "NAT", "udp dport 4791 accept"}},
		{"no firewall on loopback", at("127.0.0.2:4791"), true, "firewall", LevelOK, []string{"UDP to 127.0.0.2:4791 gets through"}},
		{"firewall that forbids", datagram(false, syscall.EPERM), true, "firewall", LevelWarning, []string{"forbids UDP to port 4791", "filter output udp dport 4791 accept", `"nft list ruleset"`, `"iptables -S"`}},
		{"firewall that drops", datagram(false, nil), true, "firewall", LevelWarning, []string{"drops UDP to port 4791", "did not arrive within 1s", "filter input udp dport 4791 accept"}},
		{"connection", func(patient, *softFacts) {}, true, "cm", LevelOK, []string{"connects to itself from 10.1.0.1,", "10.1.0.1 to itself: connected with a path MTU of 4096"}},
		{"no connection", func(p patient, _ *softFacts) {
			p.connect = func(context.Context, string, netip.Addr, string) attempt { return attempt{err: errLate} }
		}, false, "cm", LevelError, []string{"gets no answer from 10.1.0.1", "no answer within 4s", "packets of management are lost"}},
		{"no connection to a peer", func(p patient, f *softFacts) {
			at("10.1.0.1:14791")(p, f)
			p.peer = "host9"
			connectsTo("10.1.0.2:7175", attempt{err: errLate})(p)
		}, false, "peer", LevelError, []string{"let UDP port 14791 through", "udp dport 14791 accept"}},
		{"no route", datagram(false, syscall.ENETUNREACH), true, "firewall", LevelWarning, []string{"no datagram can be sent"}},
		{"cannot be created", func(p patient, _ *softFacts) { p.info.Err = errors.New("the reason") }, false, "device", LevelError, []string{"cannot be created", "the reason", "GOVERBS_SOFT=auto", "10.1.0.1 of eth0"}},
		{"cannot be opened", func(p patient, _ *softFacts) {
			p.machine.probe = func(string) (probe, error) { return probe{}, syscall.EIO }
		}, false, "open", LevelError, []string{"input/output error"}},
		{"listed", func(patient, *softFacts) {}, true, "devices", LevelOK, []string{"1 of 1 device can be used: soft0"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, facts := softPatient(t)
			c.ill(p, facts)
			d := examine(t.Context(), p.machine, nil)
			if d.Works != c.works {
				t.Errorf("works is %t: %s", d.Works, d.Verdict)
			}
			found := false
			for _, f := range d.Findings {
				text := strings.Join(append(append([]string{f.Title}, f.Evidence...), f.Fix...), "\n")
				if strings.Contains(text, "modprobe") {
					t.Errorf("finding %s is about modules:\n%s", f.Code, text)
				}
				if f.Code == CodeCM && len(f.Fix) > 0 {
					t.Errorf("the finding of connections has advice, and no interface or driver is to blame:\n%s", text)
				}
				if f.Code != c.id {
					continue
				}
				found = true
				if f.Level != c.level {
					t.Errorf("level is %s, want %s: %+v", f.Level, c.level, f)
				}
				for _, w := range c.words {
					if !strings.Contains(text, w) {
						t.Errorf("the finding does not say %q:\n%s", w, text)
					}
				}
			}
			if !found {
				t.Errorf("there is no finding %s: %+v", c.id, d)
			}
		})
	}
}

// TestSoftBeside: with devices of the kernel, a software device is one more.
func TestSoftBeside(t *testing.T) {
	p, _ := softPatient(t)
	own := *p.info
	h := healthy(t)
	h.infos = func() ([]uverbs.DeviceInfo, error) { return []uverbs.DeviceInfo{fakeInfo, own}, nil }
	h.soft, h.probeSoft = p.soft, p.probeSoft
	d := examine(t.Context(), h.machine, nil)
	ids := map[string]bool{}
	for _, f := range d.Findings {
		ids[string(f.Code)+" "+f.Device] = true
	}
	if !d.Works || !ids["module.ib_core "] || !ids["chardev rxe0"] || ids["chardev soft0"] || !ids["address soft0"] || !ids["firewall "] || !ids["firewall soft0"] {
		t.Errorf("%s: the findings are %v", d.Verdict, ids)
	}
	for _, f := range examine(t.Context(), h.machine, []string{"soft0"}).Findings {
		if strings.HasPrefix(string(f.Code), "module") || f.Device == "rxe0" {
			t.Errorf("a finding of soft0 alone is %+v", f)
		}
	}
}

// TestSoftProbe: a datagram to a device arrives, and a device that is closed takes none.
func TestSoftProbe(t *testing.T) {
	d, err := soft.New(soft.Options{Auto: true, Port: uint16(freeUDP(t)), Name: "probed"})
	must(t, err)
	defer d.Close()
	if arrived, err := liveProbe(t.Context(), "probed"); !arrived || err != nil {
		t.Errorf("it arrived: %t, %v", arrived, err)
	}
	if f := liveSoft("probed"); f.Local.Addr() != d.Addr() {
		t.Errorf("the facts are %+v", f)
	}
	if _, err := liveProbe(t.Context(), "nobody"); err == nil {
		t.Error("nobody got a datagram")
	}
}

// freeUDP returns a UDP port that nobody uses on any address.
func freeUDP(t *testing.T) int {
	t.Helper()
	c, err := net.ListenUDP("udp4", nil)
	must(t, err)
	defer c.Close()
	return c.LocalAddr().(*net.UDPAddr).Port
}

package guest

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
)

func TestHasGID(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"0": "fe80:0000:0000:0000:0000:00ff:fe00:0001\n", "1": "0000:0000:0000:0000:0000:ffff:0a01:0001\n",
		"2": "fd00:0001:0000:0000:0000:0000:0000:0001\n", "3": "0000:0000:0000:0000:0000:0000:0000:0000\n", "4": "nonsense\n",
	} {
		must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
	for ip, want := range map[string]bool{"10.1.0.1": true, "fd00:1::1": true, "10.1.0.2": false, "fd00:1::2": false} {
		if got := hasGID(dir+"/", net.ParseIP(ip)); got != want {
			t.Errorf("%s: %v", ip, got)
		}
	}
}

// The default network is part of the documentation.
func TestEnds(t *testing.T) {
	for _, e := range slices.Concat(pairAt(0), pairAt(1), pairAt(2)) {
		for _, s := range []string{e.ip4, e.ip6} {
			if _, _, err := net.ParseCIDR(s); err != nil {
				t.Errorf("%s: %v", e.dev, err)
			}
		}
		if len(e.mac) != 6 || e.mac[0]&3 != 2 {
			t.Errorf("%s: address %v is not a local unicast one", e.dev, e.mac)
		}
	}
	for host := 1; host <= MaxHosts; host++ {
		e := linked(host)
		if want := (end{dev: "eth0", ip4: fmt.Sprint("10.2.0.", host, "/24"), ip6: fmt.Sprint("fd02::", host, "/64"), mac: e.mac}); !reflect.DeepEqual(e, want) {
			t.Errorf("host %d: %+v, want %+v", host, e, want)
		}
		if mac, err := net.ParseMAC(LinkMAC(host)); err != nil || mac[0]&3 != 2 || int(mac[5]) != host {
			t.Errorf("host %d: address %v, %v", host, mac, err)
		}
		if want := map[bool]string{true: "10.2.0.2", false: "10.2.0.1"}[host == 1]; PeerIP(host) != want {
			t.Errorf("host %d: its peer is %s, want %s", host, PeerIP(host), want)
		}
	}
	want := []end{
		{dev: "ve0", ip4: "10.1.0.1/24", ip6: "fd00:1::1/64", mac: net.HardwareAddr{2, 0, 0, 0, 0, 1}},
		{dev: "ve1", ip4: "10.1.0.2/24", ip6: "fd00:1::2/64", mac: net.HardwareAddr{2, 0, 0, 0, 0, 2}},
		{dev: "ve2", ip4: "10.1.1.1/24", ip6: "fd00:2::1/64", mac: net.HardwareAddr{2, 0, 0, 0, 1, 1}},
		{dev: "ve3", ip4: "10.1.1.2/24", ip6: "fd00:2::2/64", mac: net.HardwareAddr{2, 0, 0, 0, 1, 2}},
	}
	if got := slices.Concat(pairAt(0), pairAt(1)); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	if pair := pairAt(0); pair[0].mac.String() == pair[1].mac.String() {
		t.Error("both ends have one address")
	}
}

// A link can be made bad if the kernel makes it: that of the cards is the fabric's.
func TestCables(t *testing.T) {
	for _, tt := range []struct {
		kinds string
		host  int
		want  string
	}{
		{"none", 0, ""}, {"rxe", 0, "ve0 ve1"}, {"veth", 0, "ve0 ve1"}, {"siw", 2, "eth0"}, {"eth", 1, "eth0"}, {"ib", 0, ""}, {"roce", 1, ""},
		{"rxe+siw", 0, "ve0 ve1 ve2 ve3"}, {"roce+siw", 0, "ve2 ve3"}, {"siw+ib+rxe", 0, "ve0 ve1 ve4 ve5"},
	} {
		var got []string
		for _, e := range cables(tt.kinds, tt.host) {
			got = append(got, e.dev)
		}
		if strings.Join(got, " ") != tt.want {
			t.Errorf("%s on host %d: %v, want %s", tt.kinds, tt.host, got, tt.want)
		}
	}
}

func TestWaitPeer(t *testing.T) {
	// Whether or not something listens, the loopback device answers.
	if err := waitPeer("127.0.0.1", 0); err != nil {
		t.Error(err)
	}
	if err := waitPeer("255.255.255.255", 0); err == nil || !strings.Contains(err.Error(), "does not answer") {
		t.Errorf("nobody: %v", err)
	}
}

func TestWhichHost(t *testing.T) {
	hosts := []Host{{Env: []string{"A=1"}}, {Env: []string{"A=2"}}}
	for _, tt := range []struct {
		number string
		hosts  int
		host   int
		env    string
	}{{"", 1, 0, "A=1"}, {"1", 2, 1, "A=1"}, {"2", 2, 2, "A=2"}, {"", 2, 0, ""}, {"3", 2, 0, ""}, {"0", 2, 0, ""}, {"x", 2, 0, ""}, {"", 0, 0, ""}} {
		n, h, err := whichHost(hosts[:tt.hosts], tt.number)
		if n != tt.host || (err == nil) != (tt.env != "") || err == nil && h.Env[0] != tt.env {
			t.Errorf("%q of %d: %d, %v, %v", tt.number, tt.hosts, n, h, err)
		}
	}
}

func TestLoadModulesErrors(t *testing.T) {
	if err := loadModules([]string{filepath.Join(t.TempDir(), "none.ko")}); err == nil {
		t.Error("a missing module was loaded")
	}
	if err := loadModules(nil); err != nil {
		t.Error(err)
	}
}

func TestIsInit(t *testing.T) {
	// Even with the variable set, only the first process is init.
	t.Setenv(EnvVar, "1")
	if os.Getpid() != 1 && IsInit() {
		t.Error("a test is not init")
	}
}

package guest

import (
	"net"
	"os"
	"path/filepath"
	"testing"
)

func TestHasGID(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"0": "fe80:0000:0000:0000:0000:00ff:fe00:0001\n", "1": "0000:0000:0000:0000:0000:ffff:0a01:0001\n",
		"2": "fd00:0001:0000:0000:0000:0000:0000:0001\n", "3": "0000:0000:0000:0000:0000:0000:0000:0000\n", "4": "nonsense\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for ip, want := range map[string]bool{"10.1.0.1": true, "fd00:1::1": true, "10.1.0.2": false, "fd00:1::2": false} {
		if got := hasGID(dir+"/", net.ParseIP(ip)); got != want {
			t.Errorf("%s: %v", ip, got)
		}
	}
}

// The default network is part of the documentation.
func TestEnds(t *testing.T) {
	for _, e := range ends {
		for _, s := range []string{e.ip4, e.ip6} {
			if _, _, err := net.ParseCIDR(s); err != nil {
				t.Errorf("%s: %v", e.dev, err)
			}
		}
		if len(e.mac) != 6 || e.mac[0]&3 != 2 {
			t.Errorf("%s: address %v is not a local unicast one", e.dev, e.mac)
		}
	}
	if ends[0].mac.String() == ends[1].mac.String() {
		t.Error("both ends have one address")
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

package ib

import (
	"encoding/json"
	"strings"
	"testing"
)

// gid parses a GID that must be right.
func gid(t *testing.T, s string) GID {
	t.Helper()
	g, err := ParseGID(s)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func TestGID(t *testing.T) {
	g := gid(t, "10.1.0.1")
	if got, want := g.String(), "0000:0000:0000:0000:0000:ffff:0a01:0001"; got != want {
		t.Errorf("text is %s, want %s", got, want)
	}
	if g.Addr().String() != "10.1.0.1" || g.LinkLocal() || g.IsZero() {
		t.Errorf("address of %s is %s", g, g.Addr())
	}
	if !gid(t, "fe80::1").LinkLocal() || !gid(t, "febf::1").LinkLocal() || gid(t, "fec0::1").LinkLocal() {
		t.Error("link-local is fe80::/10")
	}
	for _, bad := range []string{"", "10.1.0", "fe80::1::2", "fe80::1%eth0x/64"} {
		if _, err := ParseGID(bad); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}

func FuzzGID(f *testing.F) {
	f.Add([]byte("0000:0000:0000:0000:0000:ffff:0a01:0001"))
	f.Add([]byte("fe80::1"))
	f.Fuzz(func(t *testing.T, b []byte) {
		g, err := ParseGID(string(b))
		if err != nil {
			return
		}
		if again, err := ParseGID(g.String()); err != nil || again != g {
			t.Errorf("%q is %s, which is read as %s, %v", b, g, again, err)
		}
	})
}

func TestGIDText(t *testing.T) {
	var v struct{ GID GID }
	if err := json.Unmarshal([]byte(`{"GID":"10.1.0"}`), &v); err == nil || !strings.Contains(err.Error(), `"10.1.0"`) {
		t.Errorf("a wrong GID in JSON: %v", err)
	}
	if err := json.Unmarshal([]byte(`{"GID":"10.1.0.1"}`), &v); err != nil || v.GID != gid(t, "10.1.0.1") {
		t.Errorf("a GID in JSON is read as %s, %v", v.GID, err)
	}
	if b, err := json.Marshal(v); err != nil || string(b) != `{"GID":"0000:0000:0000:0000:0000:ffff:0a01:0001"}` {
		t.Errorf("a GID in JSON is %s, %v", b, err)
	}
}

func TestGUID(t *testing.T) {
	const g GUID = 0x0002c9030001000a
	if got, want := g.String(), "0002:c903:0001:000a"; got != want {
		t.Errorf("text is %s, want %s", got, want)
	}
	for _, text := range []string{"0002:c903:0001:000a", "2:C903:1:a", "0x2c9030001000a", "0X0002c9030001000A"} {
		if got, err := ParseGUID(text); got != g || err != nil {
			t.Errorf("%q is read as %s, %v", text, got, err)
		}
	}
	for _, bad := range []string{"", "0x", "2c9030001000a", "0x2c9:1", "0002:c903:0001", "0002::0001:000a", "0002:c903:0001:000a:1",
		"00002:c903:0001:000a", "0002:c903:0001:zzzz", "0x00002c9030001000a", "0x_1", "-1:0:0:0"} {
		if got, err := ParseGUID(bad); err == nil || got != 0 || !strings.Contains(err.Error(), bad) {
			t.Errorf("%q is read as %s, %v", bad, got, err)
		}
	}
}

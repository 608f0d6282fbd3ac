package qemu

import (
	"os"
	"strings"
	"testing"
)

// What one machine sends at descriptor 5, the other one receives there.
func TestLink(t *testing.T) {
	ends, err := Link()
	must(t, err)
	var got [2]strings.Builder
	var machines [2]*Machine
	for i, script := range []string{"printf frame >&5; cat /proc/self/fd/3 >/dev/null", "head -c 5 <&5"} {
		machines[i], err = fake(t, script).Start(t.Context(), Options{Arch: "amd64", Initrd: initrd(t), Links: []*os.File{ends[i]}, Console: &got[i]})
		must(t, err)
		ends[i].Close()
	}
	for i, m := range machines {
		<-m.Done
		m.Kill()
		if err := m.Err(); err != nil {
			t.Errorf("machine %d: %v", i, err)
		}
	}
	if got[1].String() != "frame" {
		t.Errorf("received %q", got[1].String())
	}
}

func TestCheckVFIO(t *testing.T) {
	for _, tt := range []struct{ script, says string }{
		{`[ "$*" = "-device help" ] && printf 'name "vfio-pci", bus PCI\nname "vfio-user-pci", bus PCI\n'`, ""},
		{`printf 'name "vfio-pci", bus PCI\n'`, "has no device vfio-user-pci"},
		{`echo no such library >&2; exit 127`, "exit status 127: no such library"},
	} {
		err := fake(t, tt.script).CheckVFIO(t.Context())
		if (err == nil) != (tt.says == "") || err != nil && !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: %v, want %q in it", tt.script, err, tt.says)
		}
	}
}

func TestCheckLink(t *testing.T) {
	for _, tt := range []struct{ script, says string }{
		{`[ "$*" = "-machine none -netdev help" ] && printf "Available netdev backend types:\nsocket\ndgram\ntap\n"`, ""},
		{`printf "Available netdev backend types:\nsocket\ntap\n"`, "it does not support -netdev dgram, which QEMU has since 7.2; name another one with -qemu"},
		{`echo no such library >&2; exit 127`, "exit status 127: no such library"},
	} {
		p := fake(t, tt.script)
		err := p.CheckLink(t.Context())
		if (err == nil) != (tt.says == "") || err != nil && !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: %v, want %q in it", tt.script, err, tt.says)
		}
	}
}

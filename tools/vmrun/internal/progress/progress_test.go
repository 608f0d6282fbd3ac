package progress

import (
	"bytes"
	"errors"
	"regexp"
	"testing"
)

func TestNotATerminal(t *testing.T) {
	var out bytes.Buffer
	p := New(&out)
	end := p.Start("a kernel", 2_500_000, func() int64 { return 2_500_000 })
	end(nil)
	end = p.Start("an index", 0, func() int64 { return 1234 })
	end(errors.New("no network"))
	want := `^vmrun: downloading a kernel \(2\.5 MB\)
vmrun: downloaded a kernel: 2\.5 MB in \d+\.\d s
vmrun: downloading an index
$`
	if !regexp.MustCompile(want).MatchString(out.String()) {
		t.Errorf("printed\n%s", out.String())
	}
}

func TestTerminal(t *testing.T) {
	var out bytes.Buffer
	p := &Printer{w: &out, live: true}
	seen := make(chan struct{}, 100)
	end := p.Start("a kernel", 5000, func() int64 { seen <- struct{}{}; return 1500 })
	<-seen
	end(nil)
	want := `^(\r\x1b\[Kvmrun: downloading a kernel: 1\.5 kB \(5\.0 kB\))+\r\x1b\[Kvmrun: downloaded a kernel: 5\.0 kB in \d+\.\d s\n$`
	if !regexp.MustCompile(want).MatchString(out.String()) {
		t.Errorf("printed %q", out.String())
	}
}

func TestWork(t *testing.T) {
	var out bytes.Buffer
	p := New(&out)
	p.Work("a module", "building", "built")(nil)
	p.Work("another", "building", "built")(errors.New("no"))
	want := `^vmrun: building a module\nvmrun: built a module in \d+\.\d s\nvmrun: building another\n$`
	if !regexp.MustCompile(want).MatchString(out.String()) {
		t.Errorf("printed %q", out.String())
	}
}

func TestBytes(t *testing.T) {
	for n, want := range map[int64]string{0: "0 B", 999: "999 B", 1000: "1.0 kB", 124_800_000: "124.8 MB"} {
		if got := Bytes(n); got != want {
			t.Errorf("%d is %q, want %q", n, got, want)
		}
	}
}

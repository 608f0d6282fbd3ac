package main

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestCheck(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(*options)
		says   string
	}{
		{"defaults", func(*options) {}, ""},
		{"arch", func(o *options) { o.arch = "s390x" }, `-arch "s390x": known are amd64, arm64`},
		{"no cpus", func(o *options) { o.cpus = 0 }, "-cpus 0: want 1 to 255"},
		{"mem", func(o *options) { o.mem = "lots" }, `-mem "lots"`},
		{"little mem", func(o *options) { o.mem = "64M" }, "from 128M to 1024G"},
		{"timeout", func(o *options) { o.timeout = -time.Second }, "-timeout -1s"},
		{"accel", func(o *options) { o.accel = "hvf" }, `-accel "hvf": want auto, tcg or kvm`},
		{"modules of a named kernel", func(o *options) { o.modules = "/x" }, "-modules goes with -kernel PATH"},
		{"modules of one's own", func(o *options) { o.modules, o.kernel = "/x", "./bzImage" }, ""},
		{"net", func(o *options) { o.net = "tap" }, `-net "tap": want rxe, veth or none`},
		{"net of two hosts alone", func(o *options) { o.net = "eth" }, `-net "eth": want rxe, veth or none`},
		{"loss", func(o *options) { o.loss = "1%" }, ""},
		{"loss that is no percentage", func(o *options) { o.loss = "1" }, `-loss "1": want a percentage such as 1% or 0.5%, from 0% to 100%`},
		{"delay", func(o *options) { o.delay = "5" }, `-delay "5": want a time such as 5ms`},
		{"reorder", func(o *options) { o.reorder, o.delay = "10%", "5ms" }, ""},
		{"reorder alone", func(o *options) { o.reorder = "10%" }, "-reorder needs a delay"},
		{"loss on no link", func(o *options) { o.loss, o.net = "1%", "none" }, "-loss, -delay and -reorder are about the link, and with -net none there is none"},
		{"no host", func(o *options) { o.hosts = 0 }, "-hosts 0: want 1 to 8"},
		{"nine hosts", func(o *options) { o.hosts = 9 }, "-hosts 9: want 1 to 8"},
		{"four hosts", func(o *options) { o.hosts = 4 }, ""},
		{"three hosts with cards", func(o *options) { o.dev, o.hosts = "mlx5", 3 }, "-hosts 3: with -device mlx5, want 1 or 2"},
		{"two hosts", func(o *options) { o.hosts = 2 }, ""},
		{"net of two hosts", func(o *options) { o.hosts, o.net = 2, "eth" }, ""},
		{"veth of two hosts", func(o *options) { o.hosts, o.net = 2, "veth" }, `-net "veth": with -hosts 2, want rxe, eth or none`},
		{"instructions", func(o *options) { o.icount, o.cpus = true, 1 }, ""},
		{"instructions of two", func(o *options) { o.icount = true }, "-cpus 2: with -icount, want 1"},
		{"instructions under KVM", func(o *options) { o.icount, o.cpus, o.accel = true, 1, "kvm" }, "want -accel tcg or auto"},
		{"instructions of two hosts", func(o *options) { o.icount, o.cpus, o.hosts = true, 1, 2 }, "-hosts 2: with -icount, want 1"},
		{"instructions and a model", func(o *options) { o.icount, o.cpus, o.dev = true, 1, "mlx5" }, ""},
		{"device", func(o *options) { o.dev = "ib0" }, `-device "ib0": want rxe, siw, mlx5[,mode=ib|ipoib|roce][,topology=FILE][,personality=NAME|SEED|random][,strict], or efa[,personality=NAME]`},
		{"device's mode", func(o *options) { o.dev = "mlx5,mode=opa" }, `-device "mlx5,mode=opa": want rxe, siw, mlx5[,mode=ib|ipoib|roce][,topology=FILE][,personality=NAME|SEED|random][,strict], or efa[,personality=NAME]`},
		{"mode of rxe", func(o *options) { o.dev = "rxe,mode=ib" }, `-device "rxe,mode=ib": want rxe, siw, mlx5`},
		{"mlx5", func(o *options) { o.dev = "mlx5" }, ""},
		{"a personality", func(o *options) { o.dev = "mlx5,mode=ib,personality=vf" }, ""},
		{"strict", func(o *options) { o.dev = "mlx5,strict" }, ""},
		{"a topology", func(o *options) { o.dev = "mlx5,mode=ipoib,topology=net" }, ""},
		{"a topology without a subnet manager", func(o *options) { o.dev = "mlx5,mode=ib,topology=net" }, `a topology needs a subnet manager, which mode=ipoib has`},
		{"a topology with a comma", func(o *options) { o.dev = "mlx5,mode=ipoib,topology=a,b" }, `-device "mlx5,mode=ipoib,topology=a,b": "b" follows topology=a, and the path of a topology cannot have ","`},
		{"a topology with a plus", func(o *options) { o.dev = "mlx5,mode=ipoib,topology=a+b" }, `-device "mlx5,mode=ipoib,topology=a+b": "b" follows topology=a, and the path of a topology cannot have "+"`},
		{"a topology that has no name", func(o *options) { o.dev = "mlx5,mode=ipoib,topology=" }, `-device "mlx5,mode=ipoib,topology=": want rxe, siw, mlx5`},
		{"a personality that has no name", func(o *options) { o.dev = "mlx5,personality=" }, `-device "mlx5,personality=": want rxe, siw, mlx5`},
		{"a personality of rxe", func(o *options) { o.dev = "rxe,personality=vf" }, `-device "rxe,personality=vf": want rxe, siw, mlx5`},
		{"an option that is unknown", func(o *options) { o.dev = "mlx5,ports=2" }, `-device "mlx5,ports=2": want rxe, siw, mlx5`},
		{"mlx5 on InfiniBand, two hosts", func(o *options) { o.dev, o.hosts = "mlx5,mode=ib", 2 }, ""},
		{"mlx5 on InfiniBand with IP", func(o *options) { o.dev = "mlx5,mode=ipoib" }, ""},
		{"mlx5 and a bad fabric", func(o *options) { o.dev, o.loss, o.delay = "mlx5", "1%", "1ms" }, ""},
		{"mlx5 and an order", func(o *options) { o.dev, o.delay, o.reorder = "mlx5", "1ms", "1%" }, "-reorder: with -device mlx5"},
		{"mlx5 and veth", func(o *options) { o.dev, o.net = "mlx5", "veth" }, `-net "veth": with -device mlx5`},
		{"siw", func(o *options) { o.dev = "siw" }, ""},
		{"siw, two hosts, a bad link", func(o *options) { o.dev, o.hosts, o.loss = "siw", 2, "1%" }, ""},
		{"siw's link alone", func(o *options) { o.dev, o.net = "siw", "veth" }, ""},
		{"siw with rxe's net", func(o *options) { o.dev, o.net = "siw", "rxe" }, `-net "rxe": want siw, veth or none`},
		{"mode of siw", func(o *options) { o.dev = "siw,mode=ib" }, `-device "siw,mode=ib": want rxe, siw, mlx5`},
		{"three kinds", func(o *options) { o.dev = "rxe+siw+mlx5,mode=ib" }, ""},
		{"three kinds and a net", func(o *options) { o.dev, o.net = "rxe+siw+mlx5", "rxe" }, `-net "rxe": with -device mlx5`},
		{"two kinds and a net", func(o *options) { o.dev, o.net = "siw+rxe", "tap" }, `-net "tap": want siw+rxe, veth or none`},
		{"a kind twice", func(o *options) { o.dev = "mlx5+mlx5,mode=ib" }, `-device "mlx5+mlx5,mode=ib": mlx5 is there twice`},
		{"an empty kind", func(o *options) { o.dev = "rxe+" }, `-device "": want rxe, siw, mlx5`},
		{"two kinds, two hosts", func(o *options) { o.dev, o.hosts = "rxe+siw", 2 }, `-device "rxe+siw": with -hosts 2 there is one link`},
		{"report without a card", func(o *options) { o.hcaReport = "x" }, "-hca, -hca-report and -hca-verbose go with -device mlx5 or efa"},
		{"efa", func(o *options) { o.dev = "efa,personality=first" }, ""},
		{"efa and rxe", func(o *options) { o.dev, o.hcaReport = "rxe+efa", "x" }, ""},
		{"efa's mode", func(o *options) { o.dev = "efa,mode=ib" }, `-device "efa,mode=ib": want rxe, siw, mlx5`},
		{"efa's loss", func(o *options) { o.dev, o.loss = "efa", "1%" }, "-loss and -delay: the fabric of -device efa has neither"},
		{"efa and a net", func(o *options) { o.dev, o.net = "efa", "rxe" }, `-net "rxe": with -device efa, want none or nothing`},
		{"two models", func(o *options) { o.dev = "efa+mlx5" }, `-device "efa+mlx5": want one kind of modelled card, mlx5 or efa`},
		{"three hosts with EFA cards", func(o *options) { o.dev, o.hosts = "efa", 3 }, "-hosts 3: with -device efa, want 1 or 2"},
	} {
		o := defaults()
		tt.change(&o)
		err := o.check()
		if (err == nil) != (tt.says == "") || err != nil && !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: %v, want %q in it", tt.name, err, tt.says)
		}
	}
}

func TestCheckDefaults(t *testing.T) {
	for _, tt := range []struct {
		load []string
		net  string
		want string
		n    int
	}{
		{[]string{"default"}, "", "rxe", len(defaultModules)},
		{[]string{"none"}, "", "none", 0},
		{[]string{"none"}, "veth", "veth", 0},
		{[]string{"veth"}, "", "rxe", 1},
		{[]string{"default"}, "veth", "veth", len(defaultModules)},
	} {
		o := defaults()
		o.load, o.net = tt.load, tt.net
		must(t, o.check())
		if o.net != tt.want || len(o.load) != tt.n {
			t.Errorf("-load %v -net %q: network %q, %d modules; want %q, %d", tt.load, tt.net, o.net, len(o.load), tt.want, tt.n)
		}
	}
}

// Two hosts have a network card where one has a veth pair.
func TestModulesFor(t *testing.T) {
	if d := cmp.Diff(defaultModules, modulesFor(1, []device{{kind: deviceRxe}})); d != "" {
		t.Error(d)
	}
	two := modulesFor(2, []device{{kind: deviceRxe}})
	if len(two) != len(defaultModules) || slices.Contains(two, "veth") || !slices.Contains(two, "e1000e") || !slices.Contains(defaultModules, "veth") {
		t.Errorf("two hosts: %v", two)
	}
}

func TestModulesForMlx5(t *testing.T) {
	for _, tt := range []struct {
		dev   string
		hosts int
		link  bool
		cards int
		net   string
	}{{"mlx5", 1, false, 2, "roce"}, {"mlx5,mode=roce", 2, false, 1, "roce"}, {"mlx5,mode=ib", 1, false, 2, "ib"}, {"mlx5,mode=ib", 2, true, 1, "ib"},
		{"mlx5,mode=ipoib", 1, false, 2, "ipoib"}, {"mlx5,mode=ipoib", 2, false, 1, "ipoib"}} {
		o := defaults()
		o.dev, o.hosts = tt.dev, tt.hosts
		must(t, o.check())
		if !slices.Contains(o.load, "mlx5_ib") || slices.Contains(o.load, "rdma_rxe") || slices.Contains(o.load, "e1000e") != tt.link {
			t.Errorf("-device %s, %d hosts: modules %v", tt.dev, tt.hosts, o.load)
		}
		if ip := tt.net == "ipoib"; slices.Contains(o.load, "ib_ipoib") != ip || slices.Contains(o.with, "opensm") != ip {
			t.Errorf("-device %s, %d hosts: modules %v, packages %v", tt.dev, tt.hosts, o.load, o.with)
		}
		if o.cards() != tt.cards || o.net != tt.net {
			t.Errorf("-device %s, %d hosts: %d cards each, network %q", tt.dev, tt.hosts, o.cards(), o.net)
		}
	}
	o := defaults()
	if err := o.check(); err != nil || o.cards() != 0 {
		t.Errorf("rxe: %d cards, %v", o.cards(), err)
	}
}

func TestModulesForSeveral(t *testing.T) {
	for _, tt := range []struct {
		dev   string
		hosts int
		has   string
		not   string
		net   string
	}{
		{"siw", 1, "crc32c_generic? veth siw rdma_ucm", "rdma_rxe mlx5_ib e1000e", "siw"},
		{"siw", 2, "e1000e siw", "veth rdma_rxe", "siw"},
		{"rxe+siw", 1, "rdma_rxe siw veth", "mlx5_ib", "rxe+siw"},
		{"efa", 1, "crc16? ib_uverbs efa", "rdma_rxe rdma_ucm mlx5_ib e1000e", "efa"},
		{"efa", 2, "e1000e efa", "veth", "efa"},
		{"rxe+efa", 1, "rdma_rxe veth efa", "e1000e", "rxe+efa"},
		{"siw+mlx5,mode=ib+rxe", 1, "siw mlx5_ib rdma_rxe veth", "e1000e", "siw+ib+rxe"},
	} {
		o := defaults()
		o.dev, o.hosts = tt.dev, tt.hosts
		must(t, o.check())
		for _, m := range strings.Fields(tt.has) {
			if !slices.Contains(o.load, m) {
				t.Errorf("-device %s: no %s among %v", tt.dev, m, o.load)
			}
		}
		for _, m := range strings.Fields(tt.not) {
			if slices.Contains(o.load, m) {
				t.Errorf("-device %s: %s among %v", tt.dev, m, o.load)
			}
		}
		if n := len(slices.Compact(slices.Sorted(slices.Values(o.load)))); n != len(o.load) || o.net != tt.net {
			t.Errorf("-device %s: network %q, modules %v", tt.dev, o.net, o.load)
		}
	}
}

func TestMem(t *testing.T) {
	for text, want := range map[string]int{"512": 512, "512M": 512, "2g": 2048, "2GB": 2048, "128": 128, "127": 0, "": 0, "G": 0, "-1G": 0, "9999999G": 0, "99999999999999999999": 0} {
		got, err := (&options{mem: text}).memMiB()
		if got != want || (err == nil) != (want != 0) {
			t.Errorf("%q: %d, %v; want %d", text, got, err, want)
		}
	}
}

func TestEnviron(t *testing.T) {
	t.Setenv("FROM_HOST", "host")
	o := options{env: []string{"A=b=c", "PATH=/x", "FROM_HOST", "NOT_SET_ANYWHERE", "EMPTY="}}
	env, err := o.environ("/dir")
	must(t, err)
	want := []string{"HOME=/root", "USER=root", "LOGNAME=root", "SHELL=/bin/sh", "TMPDIR=/tmp", "LANG=C.UTF-8", "PWD=/dir", "A=b=c", "PATH=/x", "FROM_HOST=host", "EMPTY="}
	if d := cmp.Diff(want, env); d != "" {
		t.Error(d)
	}
	if _, err := (&options{env: []string{"=x"}}).environ("/"); err == nil {
		t.Error("a variable without a name was taken")
	}
}

func TestSplitPair(t *testing.T) {
	for _, tt := range []struct{ pair, src, dst string }{
		{"f", "/cwd/f", "/cwd/f"},
		{"./d/../f", "/cwd/f", "/cwd/f"},
		{"/a/f", "/a/f", "/a/f"},
		{"f:/bin/g", "/cwd/f", "/bin/g"},
		{"f:/bin/", "/cwd/f", "/bin/f"},
		{"f:g", "/cwd/f", "/cwd/g"},
		{"/run/user/f", "/run/user/f", "/vmrun/run/user/f"},
		{"", "", ""}, {":x", "", ""}, {"x:", "", ""},
	} {
		src, dst, err := splitPair(tt.pair, "/cwd")
		if src != tt.src || dst != tt.dst || (err == nil) != (tt.src != "") {
			t.Errorf("%q: %q, %q, %v; want %q, %q", tt.pair, src, dst, err, tt.src, tt.dst)
		}
	}
}

func TestGuestPath(t *testing.T) {
	for host, want := range map[string]string{
		"/home/x": "/home/x", "/dev/shm/t": "/vmrun/dev/shm/t", "/run": "/vmrun/run", "/runner/x": "/runner/x", "/tmp/x": "/tmp/x",
	} {
		if got := guestPath(host); got != want {
			t.Errorf("%s: %s, want %s", host, got, want)
		}
	}
}

func TestTwoDashes(t *testing.T) {
	for _, tt := range []struct{ args, want string }{
		{"-kernel 6.1 ./prog -test.v", "--kernel 6.1 ./prog -test.v"},
		{"-kernel=6.1 -v ./prog -kernel x", "--kernel=6.1 -v ./prog -kernel x"},
		{"--kernel 6.1 -no-sysfs -mem 2G prog", "--kernel 6.1 --no-sysfs --mem 2G prog"},
		{"-env -kernel ./prog", "--env -kernel ./prog"},
		{"-- -kernel", "-- -kernel"},
		{"-nosuch ./prog", "-nosuch ./prog"},
		{"get -suite sid -no-deps pkg", "get --suite sid --no-deps pkg"},
		{"-verbose fetch -arch arm64 6.12", "--verbose fetch --arch arm64 6.12"},
		{"./get -suite sid", "./get -suite sid"},
		{"-hosts 2 ./a -hosts 3 +++ ./b", "--hosts 2 ./a -hosts 3 +++ ./b"},
		{"-help", "--help"},
		{"", ""},
	} {
		status := 0
		got := strings.Join(twoDashes(command(&status), strings.Fields(tt.args)), " ")
		if got != tt.want {
			t.Errorf("%q: %q, want %q", tt.args, got, tt.want)
		}
	}
}

func TestProfiles(t *testing.T) {
	got := profiles([]string{"-test.v=true", "-test.outputdir=/out", "-test.cpuprofile=cpu.out", "-test.coverprofile=/abs/c.out", "-test.trace=", "-coverprofile=x", "-test.run=a=b"}, "/cwd")
	if d := cmp.Diff(map[string]string{"/out/cpu.out": "/out/cpu.out", "/abs/c.out": "/abs/c.out"}, got); d != "" {
		t.Error(d)
	}
	got = profiles([]string{"-test.memprofile=m"}, "/cwd")
	if d := cmp.Diff(map[string]string{"/cwd/m": "/cwd/m"}, got); d != "" {
		t.Error(d)
	}
	dirs := outputDirs([]string{"-test.gocoverdir=/tmp/x", "-test.outputdir=rel", "-x"})
	if d := cmp.Diff([]string{"/tmp/x"}, dirs); d != "" {
		t.Error(d)
	}
}

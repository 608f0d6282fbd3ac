package perf

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// grouped changes the config of a test with a multicast group.
func grouped(change func(*Config)) Config {
	c := Default(Send, BW)
	c.Type, c.Iterations, c.Sizes, c.Verify = UD, 200, []int{100, 1000}, true
	c.MGID = DefaultGroup.As16()
	change(&c)
	return c
}

// TestMulticast: all messages to a group reach the server, which is its member.
func TestMulticast(t *testing.T) {
	pair := newSoftPair(t)
	client := &Client{Config: grouped(func(*Config) {})}
	if _, err := pair.run(t, &Server{}, client); err == nil || !strings.Contains(err.Error(), "--mcg: this server has its host join no groups") {
		t.Errorf("error without --allow-mcg is %v", err)
	}
	r, err := pair.run(t, &Server{AllowMCG: true}, client)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range r.Results {
		if s.Lost != 0 || s.Iterations != 200 {
			t.Errorf("%d of %d messages of %d bytes were lost, want 0 of 200", s.Lost, s.Iterations, s.Size)
		}
	}
	if p := r.Config.InGroup(Peer{QPN: 7}); p.QPN != ib.MulticastQPN || p.GID != r.Config.MGID {
		t.Errorf("messages go to QP %d at %s, want the group", p.QPN, p.GID)
	}
	if r.Config.MGID.Addr() != DefaultGroup {
		t.Errorf("the report has the group %s, want %s", r.Config.MGID, DefaultGroup)
	}
}

// TestMulticastRefused: settings without a meaning for a group are refused.
func TestMulticastRefused(t *testing.T) {
	for _, c := range []struct {
		change func(*Config)
		want   string
	}{
		{func(c *Config) { c.Metric, c.Depth, c.List = Lat, 1, 1 }, "--mcg is for send-bw"},
		{func(c *Config) { c.Both = true }, "--mcg is for one direction"},
		{func(c *Config) { c.QPs = 2 }, "--mcg is for one queue pair, as each would receive all messages, and --qps is 2"},
		{func(c *Config) { c.CM = true }, "--mcg is for queue pairs without --cm"},
		{func(c *Config) { c.MGID = ib.GID{10: 0xff, 11: 0xff, 12: 10, 15: 1} }, "--mgid is 10.0.0.1, allowed: a multicast address, such as 239.255.18.10"},
	} {
		config := grouped(c.change)
		if err := config.Validate(); !errors.As(err, new(ValueError)) || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("error is %v, want %q", err, c.want)
		}
	}
	config := grouped(func(*Config) {})
	if err := config.fit(Limits{Device: "ib0", InfiniBand: true}); err == nil || !strings.HasPrefix(err.Error(), "--mcg: ib0 is of InfiniBand") {
		t.Errorf("error on InfiniBand is %v", err)
	}
}

// TestMemoryOptions: a device without memory of its own or hints refuses them, and so do options that exclude them.
func TestMemoryOptions(t *testing.T) {
	pair := newSoftPair(t)
	hints := &uverbs.DMAHOptions{ProcessingHint: new(uint8(1))}
	config := Default(Write, BW)
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	for flag, l := range map[string]Local{"use-dm": {DM: true}, "ph": {DMAH: hints}, "use-data-direct": {Direct: true, DMABuf: file}} {
		want := "--" + flag + ": "
		if _, err := pair.run(t, &Server{}, &Client{Config: config, Local: l}); !errors.Is(err, errors.ErrUnsupported) || !strings.Contains(err.Error(), want) {
			t.Errorf("error is %v, want one of a missing feature with %q", err, want)
		}
	}
	for _, c := range []struct {
		local Local
		want  string
	}{
		{Local{Direct: true, DMABuf: "x", DMAH: hints}, "--ph and --use-data-direct exclude each other"},
		{Local{DMAH: hints, ODP: true}, "--ph and --odp exclude each other"},
		{Local{DM: true, DMABuf: "x"}, "--use-dm and --dmabuf exclude each other"},
		{Local{DM: true, HugePages: true}, "--use-dm and --huge-pages exclude each other"},
		{Local{DM: true, ODP: true}, "--use-dm and --odp exclude each other"},
		{Local{DM: true, Relaxed: true}, "--use-dm and --relaxed-ordering exclude each other"},
		{Local{DM: true, DMAH: hints}, "--use-dm and --ph exclude each other"},
		{Local{DM: true, NullMR: true}, "--use-null-mr and --use-dm exclude each other"},
		{Local{DMAH: hints, NullMR: true}, "--use-null-mr and --ph exclude each other"},
	} {
		c.local.GID, c.local.CPU = Auto, Auto
		if err := c.local.Validate(&config); err == nil || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("error is %v, want %q", err, c.want)
		}
	}
}

package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode"

	"github.com/goverbs/goverbs/tools/verbs/internal/perf"
)

func TestPerfFlags(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		name = filepath.Join(dir, name)
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return name
	}
	lat := file("lat.json", `{"version":1,"test":"send-lat","config":{"metric":"lat","type":"rc"},"results":[{"size":2,"latency":{"samples":1,"histogram":[{"count":1}]}}]}`)
	empty := file("empty.json", `{"version":1,"test":"send-lat","config":{"metric":"lat","type":"rc"},"results":[{"size":2}]}`)
	for _, c := range []struct{ args, want string }{
		{"send-lat", "HOST is missing, where \"verbs perf serve\" runs; only with --perftest can this side be the server: verbs perf send-lat [HOST]"},
		{"send-lat a b", `the arguments of verbs perf send-lat are "a b", allowed: at most 1`},
		{"bogus", `the arguments of verbs perf are "bogus", allowed: none`},
		{"serve --max-clients 0", "--max-clients is 0, allowed: 1 to 65536"},
		{"send-lat h -s 0", "--size is 0, allowed: 1 to"},
		{"send-lat h -p 0", "--port is 0, allowed: 1 to 65535"},
		{"send-lat h -t xrc", `--type is "xrc", allowed: rc, uc, ud`},
		{"read-bw h -t ud", "read-bw needs a connection, which ud has not"},
		{"send-lat h -q 2", "unknown shorthand flag: 'q'"},
		{"atomic-lat h -s 16", "unknown shorthand flag: 's'"},
		{"write-lat h -e", "unknown shorthand flag: 'e'"},
		{"send-bw h --rate fast", `--rate is "fast", allowed: a number above 0`},
		{"send-bw h -l 200", "--list is 200, allowed: 1 to --depth, which is 128"},
		{"send-lat h -x -2", "--gid is -2, allowed: 0 and more"},
		{"send-lat h --cpu 5000", "--cpu is 5000, allowed: 0 to 1023"},
		{"write-lat h --dmabuf x", "--dmabuf: the memory is not the program's to look at"},
		{"send-lat h --dmabuf x --huge-pages", "--dmabuf and --huge-pages exclude each other"},
		{"send-lat h --plot a.gif", `--plot is "a.gif", allowed: a file whose name ends in .svg or .png`},
		{"send-lat h --plot " + dir + "/none/a.svg", "allowed: a file in a directory that is there: "},
		{"send-lat h --plot " + lat + "/a.svg", "allowed: a file in a directory"},
		{"send-lat h --overlay " + lat, "--overlay needs --plot"},
		{"send-lat h --plot a.svg --overlay " + dir + "/none", "--overlay: open"},
		{"send-lat h --plot a.svg --overlay " + empty, "empty.json: the result of size 2 has no lat in it"},
		{"send-bw h --plot a.svg --overlay " + lat, "it is of send-lat, which has no axis in common with send-bw"},
		{"serve -p 70000", "--port is 70000"},
		{"serve --max-memory 0", "--max-memory is 0, allowed: 1 MiB and more"},
		{"serve --cpu -7", "--cpu is -7"},
		{"serve --dmabuf x --huge-pages", "--dmabuf and --huge-pages exclude each other"},
		{"serve --listen 192.0.2.1", "192.0.2.1:18516"},
		{"serve HOST", `the arguments of verbs perf serve are "HOST", allowed: none`},
	} {
		out, err := run(t, append([]string{"perf"}, strings.Fields(c.args)...)...)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("perf %s: %v, want %q\n%s", c.args, err, c.want, out)
		}
	}
}

func TestPerfHelp(t *testing.T) {
	for args, want := range map[string][]string{
		"perf --help":            {"send-lat", "atomic-bw", "serve", "median_us", "mib_per_s", "histogram", "ib_send_lat"},
		"perf send-lat --help":   {"rc, uc, ud", "--events", "--verify", "--cm", "--plot", "default [2]", "default 1000"},
		"perf write-bw --help":   {"rc, uc", "--both", "--list", "--moderate", "--rate", "default [65536]", "default 5000", "default 128"},
		"perf atomic-lat --help": {"--outs"},
		"perf serve --help":      {"--max-memory", "--max-clients", "18516", "TRUST", "--listen"},
	} {
		out, err := run(t, strings.Fields(args)...)
		for _, w := range want {
			if err != nil || !strings.Contains(out, w) {
				t.Errorf("verbs %s does not tell of %q: %v", args, w, err)
			}
		}
	}
}

// fields collects the names of all fields of a JSON document.
func fields(v any, all map[string]bool) {
	switch v := v.(type) {
	case map[string]any:
		for name, inner := range v {
			all[name] = true
			fields(inner, all)
		}
	case []any:
		for _, inner := range v {
			fields(inner, all)
		}
	}
}

// TestPerfJSON: the help tells of each field that a report may have.
func TestPerfJSON(t *testing.T) {
	help, err := run(t, "perf", "--help")
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(help, "With --json")
	text, _, _ = strings.Cut(text, "Usage:")
	said := map[string]bool{}
	for _, word := range strings.FieldsFunc(text, func(r rune) bool { return r != '_' && !unicode.IsLetter(r) && !unicode.IsDigit(r) }) {
		said[word] = true
	}
	c := perf.Default(perf.Send, perf.BW)
	c.All, c.Both, c.Duration, c.SL, c.TOS, c.RdAtomic, c.Rate = true, true, 1, 1, 1, 1, perf.Rate{Value: 1, Unit: perf.Messages}
	side := perf.Side{GID: "::1", Perftest: "6.06"}
	b, err := json.Marshal(perf.Report{Config: c, Client: side, Server: side, Results: []perf.Size{{Latency: perf.NewLatency([]int64{1}), Bandwidth: &perf.Bandwidth{}}}})
	if err != nil {
		t.Fatal(err)
	}
	var report any
	if err := json.Unmarshal(b, &report); err != nil {
		t.Fatal(err)
	}
	all := map[string]bool{}
	fields(report, all)
	if len(all) < 50 {
		t.Errorf("a report has %d fields: %s", len(all), b)
	}
	for name := range all {
		if !said[name] {
			t.Errorf("the help does not tell of %s", name)
		}
	}
}

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
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
	lat := file("lat.json", `{"schema":1,"test":"send-lat","config":{"metric":"lat","type":"rc"},"results":[{"size":2,"latency":{"samples":1,"histogram":[{"count":1}]}}]}`)
	empty := file("empty.json", `{"schema":1,"test":"send-lat","config":{"metric":"lat","type":"rc"},"results":[{"size":2}]}`)
	for _, c := range []struct{ args, want string }{
		{"send-lat", `HOST is missing: the host where "verbs perf serve" runs; only with --perftest can this side be the server`},
		{"send-lat a b", `the arguments of verbs perf send-lat are "a b", allowed: at most 1`},
		{"bogus", `the command of verbs perf is "bogus", allowed: atomic-bw, `},
		{"serve --max-clients 0", "--max-clients is 0, allowed: 1 to 65536"},
		{"send-lat h -s 0", "--size is 0, allowed: 1 to"},
		{"send-lat h -p 0", "--port is 0, allowed: 1 to 65535"},
		{"send-lat h -t rd", `--type is "rd", allowed: rc, uc, ud, xrc, dc, srd`},
		{"send-bw h -t xrc --cm", "--type is xrc, allowed: rc, ud, as the connection manager (--cm) connects nothing for type xrc"},
		{"send-bw h -t xrc --use-srq", "--use-srq: with --type xrc the queue pairs of send-bw share receives in any case"},
		{"read-bw h -t ud", "--type is ud, allowed: rc, xrc, dc, srd, as read-bw needs a QP with one peer"},
		{"send-lat h -q 2", "unknown shorthand flag: 'q'"},
		{"atomic-lat h -s 16", "unknown shorthand flag: 's'"},
		{"write-lat h -e", "--events without --imm: write-lat polls memory, for which there are no events"},
		{"write-bw h -r 100", "--recv-depth without --imm: write-bw takes no receives"},
		{"write-bw h --use-srq", "--use-srq is for messages that take receives, in write-bw only with --imm"},
		{"read-bw h --imm", "unknown flag: --imm"},
		{"atomic-bw h -A CMP_AND_SWAP -q 99999", "--qps is 99999, allowed: 1 to 16384"},
		{"atomic-lat h -A max", `--atomic-type is "max", allowed: add, swap`},
		{"write-lat h --atomic-type swap", "unknown flag: --atomic-type"},
		{"send-bw h --rate fast", `--rate is "fast", allowed: a number above 0`},
		{"send-bw h --rate-type hw", `--rate-type is "hw", allowed: sw, and hw with --rate`},
		{"send-bw h --rate 1Gb --rate-type pp", `--rate-type is "pp", allowed: sw, and hw with --rate`},
		{"send-bw h --rate 12Gb --rate-type hw", "--rate is 12 Gb, allowed: with --rate-type hw the rates of InfiniBand: 2.5Gb, "},
		{"send-bw h --rate 10Gb --rate-type hw -t ud", "--rate-type is hw, allowed: sw with --type ud, as"},
		{"send-bw h --rate 10Gb --rate-type hw --cm", "--rate-type is hw, allowed: sw with --cm, as"},
		{"send-bw h --rate 10Gb --rate-type=", `--rate-type is "", allowed: sw, and hw with --rate`},
		{"send-bw h -l 200", "--list is 200, allowed: 1 to --depth, which is 128"},
		{"send-lat h -x -2", "--gid is -2, allowed: 0 and more"},
		{"send-lat h --cpu 5000", "--cpu is 5000, allowed: 0 to 1023"},
		{"write-lat h --dmabuf x", "--dmabuf: the memory is not the program's to look at"},
		{"send-bw h --mgid 239.0.0.1", `--mgid is "239.0.0.1", but without --mcg there is no group`},
		{"send-bw h --mcg --mgid 10.0.0.1", `--mgid is "10.0.0.1", allowed: a multicast address, such as 239.255.18.10`},
		{"send-bw h --mcg -t rc", "--mcg is for --type ud, and this is rc"},
		{"send-lat h --mcg", "unknown flag: --mcg"},
		{"send-bw --perftest h -g -M 239.0.0.2", "--mgid is 239.0.0.2, but with --perftest its server chooses the group"},
		{"send-bw h --ph 4", "--ph is 4, allowed: 0 to 3"},
		{"send-bw h --ph 1 --tph-mem xx --cpu-id 0", `--tph-mem is "xx", allowed: vm, pm`},
		{"send-bw h --ph 1 --tph-mem vm", "--tph-mem and --cpu-id go together: give both or none"},
		{"serve --cpu-id 0", "--tph-mem and --cpu-id go together: give both or none"},
		{"send-bw h --tph-mem pm --cpu-id 0", "--tph-mem is pm, but without --ph there are no hints"},
		{"send-bw h --use-data-direct", "--use-data-direct needs --dmabuf with the memory of another device"},
		{"send-bw h --use-data-direct --dmabuf /dev/dma_heap/system", "--use-data-direct needs --dmabuf with the memory of another device"},
		{"send-bw h --use-dm -V", "--use-dm: the memory is not the program's to look at"},
		{"send-lat h --dmabuf x --huge-pages", "--dmabuf and --huge-pages exclude each other"},
		{"send-lat h --plot a.gif", `--plot is "a.gif", allowed: a file whose name ends in .svg`},
		{"send-lat h --plot " + dir + "/none/a.svg", "allowed: a file in an existing directory: "},
		{"send-lat h --plot " + lat + "/a.svg", "allowed: a file in a directory"},
		{"send-lat h --overlay " + lat, "--overlay needs --plot"},
		{"send-lat h --plot a.svg --overlay " + dir + "/none", "--overlay: open"},
		{"send-lat h --plot a.svg --overlay " + empty, "empty.json: the result of size 2 has no latency with a histogram in it"},
		{"send-bw h --plot a.svg --overlay " + lat, "it is of send-lat, which has no axis in common with send-bw"},
		{"send-bw h --timeline 1ms", "--timeline is 1ms, allowed: 10ms to 1h0m0s"},
		{"send-bw h --timeline 1s --perftest", "--timeline and --perftest exclude each other"},
		{"plot -o a.svg", "the number of FILEs is 0, allowed: 1 to 12"},
		{"plot -o a.png " + lat, `--output is "a.png", allowed: a file whose name ends in .svg`},
		{"plot " + lat, "--output is missing"},
		{"plot -o a.svg --kind x " + lat, `--kind is "x", allowed: sizes, latency, time`},
		{"send-bw h -q many", `--qps is "many", allowed: a whole number`},
		{"send-bw h -s 1,x", `--size is "1,x", allowed: whole numbers, separated by commas`},
		{"send-bw h --timeout 0s", "--timeout is 0s, allowed: more than 0"},
		{"send-bw h --ack-timeout 32", "--ack-timeout is 32, allowed: 1 to 31"},
		{"send-bw h -i 0", "--ib-port is 0, allowed: 1 to 255"},
		{"send-bw h -S 300", "--sl is 300, allowed: 0 to 15"},
		{"send-bw h --pkey 0x8000", `--pkey is "0x8000", allowed: 0x1 to 0x7fff, with or without the bit of full members, 0x8000`},
		{"send-bw h --pkey 0x8001 --cm", "--pkey is 0x8001, but with --cm the connection manager takes the partition"},
		{"send-bw h --pkey 0x8001 --pkey-index 1", "--pkey-index and --pkey exclude each other"},
		{"send-bw h --pkey-index 1 --cm", "--pkey-index is 1, but with --cm the connection manager takes the partition"},
		{"send-bw h --pkey-index -1", "--pkey-index is -1, allowed: 0 and more"},
		{"send-bw h --vector 1", "--vector is 1, but without --events there are none"},
		{"send-bw h --run-infinitely -n 10", "--run-infinitely and --iterations exclude each other"},
		{"send-bw h --run-infinitely -a", "--run-infinitely: send-bw has no end, and there are several sizes (--size, --all)"},
		{"send-bw h --run-infinitely -D -1s", "--duration is -1s, allowed with --run-infinitely: 100ms and more"},
		{"send-bw --run-infinitely --perftest", "--run-infinitely with --perftest needs HOST"},
		{"send-bw h --run-infinitely --perftest --both", "--run-infinitely and --both exclude each other with --perftest"},
		{"send-bw h -D 0s", "--duration is 0s, allowed: more than 0"},
		{"send-bw h --report-counters=", "--report-counters is empty, allowed: names of counters"},
		{"send-bw h -W a,,b", `--report-counters is "", allowed: names of counters`},
		{"send-bw h -W a,b,a", `--report-counters is "a,b,a", allowed: each counter once`},
		{"send-lat h --run-infinitely", "unknown flag: --run-infinitely"},
		{"write-bw --perftest -W x", "--report-counters with --perftest needs HOST or --both, as the server of write-bw"},
		{"write-lat --perftest -W x", "--report-counters with --perftest needs HOST, as latency is the client's"},
		{"read-bw h --use-null-mr -V", "--use-null-mr: the memory is not the program's to look at"},
		{"write-bw h --use-null-mr --both --inline 64", "--use-null-mr and --inline exclude each other"},
		{"write-bw h --use-null-mr --relaxed-ordering", "--use-null-mr and --relaxed-ordering exclude each other"},
		{"send-bw h --use-null-mr", "unknown flag: --use-null-mr"},
		{"send-bw h --odp -t dc", "--odp and --type dc exclude each other"},
		{"send-bw h --log-dci-streams 2", "--log-dci-streams: send-bw has no initiators without --type dc"},
		{"send-bw h -t dc --log-dci-streams 16", "--log-dci-streams is 16, allowed: 0 to 15"},
		{"serve --odp --dmabuf x", "--dmabuf and --odp exclude each other"},
		{"serve -p 70000", "--port is 70000, allowed: 1 to 65535"},
		{"serve --max-time 0s", "--max-time is 0s, allowed: more than 0, up to 24h0m0s"},
		{"serve --max-time 25h", "--max-time is 25h0m0s, allowed: more than 0, up to 24h0m0s"},
		{"serve --max-memory 0", "--max-memory is 0, allowed: 1 to "},
		{"serve --cpu -7", "--cpu is -7, allowed: 0 to 1023"},
		{"serve HOST", `the arguments of verbs perf serve are "HOST", allowed: none`},
	} {
		out, err := run(t, append([]string{"perf"}, strings.Fields(c.args)...)...)
		if exitStatus(err) != 2 || !strings.Contains(err.Error(), c.want) {
			t.Errorf("perf %s: status %d, %v, want %q\n%s", c.args, exitStatus(err), err, c.want, out)
		}
	}
	_, err := run(t, "perf", "plot", "-o", dir+"/a.svg", "-s", "7", lat)
	if want := "lat.json has no result of size 7, which --size asks for"; err == nil || err.Error() != want {
		t.Errorf("perf plot: %v, want %s", err, want)
	}
	_, err = run(t, "perf", "serve", "--listen", "192.0.2.1")
	if exitStatus(err) != 1 || !strings.Contains(err.Error(), "192.0.2.1:18516") {
		t.Errorf("an address of another host: status %d, %v", exitStatus(err), err)
	}
}

func TestPerfHelp(t *testing.T) {
	for args, want := range map[string][]string{
		"perf --help":            {"send-lat", "atomic-bw", "serve", "ib_send_lat"},
		"perf send-lat --help":   {"rc, uc, ud", "--events", "--verify", "--cm", "--plot", "default [2]", "default 1000"},
		"perf write-bw --help":   {"rc, uc", "--both", "--list", "--moderate", "--rate", "default [65536]", "default 5000", "default 128"},
		"perf atomic-lat --help": {"--outs"},
		"perf serve --help":      {"--max-memory", "--max-clients", "--max-time", "default 10m", "18516", "Security:", "--listen"},
	} {
		out, err := run(t, strings.Fields(args)...)
		out = strings.Join(strings.Fields(out), " ")
		for _, w := range want {
			if err != nil || !strings.Contains(out, w) {
				t.Errorf("verbs %s does not mention %q: %v", args, w, err)
			}
		}
	}
}

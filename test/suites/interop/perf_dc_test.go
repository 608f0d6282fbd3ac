package interop

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
)

// needsDC skips a test of DC where there is none.
func needsDC(t *testing.T) {
	t.Helper()
	testenv.Guest(t)
	testenv.Needs(t, "dynamically connected transport", "mlx5")
}

// TestPerfDC runs each test of verbs perf over DC and XRC, with the data compared, and in both directions at once.
func TestPerfDC(t *testing.T) {
	testenv.Tags(t, testenv.Perftest)
	needsDC(t)
	const n = 20
	_, port := perfServe(t)
	for _, typ := range []string{"dc", "xrc"} {
		for test := range perfTests {
			options := []string{"-t", typ, "-n", strconv.Itoa(n), "-V"}
			if !strings.HasPrefix(test, "atomic") {
				options = append(options, "-s", "2,100,5000")
			}
			for _, more := range [][]string{nil, {"-b", "-q", "2"}} {
				if more != nil && strings.HasSuffix(test, "lat") {
					continue
				}
				t.Run(strings.Join(append([]string{typ, test}, more...), " "), func(t *testing.T) {
					r := perfJSON(t, port, test, append(options[:len(options):len(options)], more...)...)
					want := n
					if more != nil {
						want *= 4 // two queue pairs, two directions
					}
					for _, res := range r.Results {
						if res.Iterations != want || !res.Verified || res.Lost != 0 {
							t.Errorf("%+v, want %d messages", res, want)
						}
					}
				})
			}
		}
	}
}

// TestPerftestDC plays each test over DC and XRC with perftest's programs, in both roles.
func TestPerftestDC(t *testing.T) {
	testenv.Tags(t, testenv.Perftest)
	needsDC(t)
	version := perftestVersion(t)
	for _, typ := range []string{"DC", "XRC"} {
		for _, server := range []bool{false, true} {
			for _, op := range []string{"send", "write", "read", "atomic"} {
				for _, metric := range []string{"lat", "bw"} {
					t.Run(fmt.Sprintf("%s %s-%s server=%v", typ, op, metric, server), func(t *testing.T) {
						playPerftest(t, version, op, metric, typ, false, server)
					})
				}
			}
			perftestSplit(t, typ, server)
		}
	}
}

// perftestSplit plays tests with several queue pairs, directions and sizes, of a type whose queue pairs either send
// or receive.
func perftestSplit(t *testing.T, typ string, server bool) {
	for _, c := range []struct {
		test, theirs, ours string
		sizes              int   // their number
		count              int64 // messages of each size, both directions
	}{
		{test: "send-bw", theirs: "-b -q 2 -s 3000 -n 200", ours: "--both --qps 2 --size 3000 -n 200", sizes: 1, count: 800},
		{test: "send-bw", theirs: "-q 3 -s 64 -n 200", ours: "--qps 3 --size 64 -n 200", sizes: 1, count: 600},
		{test: "write-bw", theirs: "-b -q 2 -s 100 -n 200", ours: "--both --qps 2 --size 100 -n 200", sizes: 1, count: 800},
		{test: "read-bw", theirs: "-q 3 -s 100 -n 100", ours: "--qps 3 --size 100 -n 100", sizes: 1, count: 300},
		{test: "send-bw", theirs: "-a -n 10", ours: "--all -n 10", sizes: 23, count: 10},
	} {
		if (server || typ != "DC") && c.sizes > 1 {
			continue // up to 8 MiB, which takes long
		}
		t.Run(fmt.Sprintf("%s %s %s server=%v", typ, c.test, c.theirs, server), func(t *testing.T) {
			r := perftestPair{test: c.test, server: server, theirs: "-F -c " + typ + " " + c.theirs, ours: "--type " + strings.ToLower(typ) + " " + c.ours}.play(t)
			if len(r.Results) != c.sizes {
				t.Fatalf("%+v", r)
			}
			for _, res := range r.Results {
				if res.Iterations != c.count {
					t.Errorf("%+v, expected %d messages", res, c.count)
				}
			}
		})
	}
}

// cardLacks returns what the device or the kernel does not have of the options of memory and of the order of data, in
// the words of the error for each: "" for what must work.
func cardLacks(t *testing.T) (ud, outOfOrder string) {
	t.Helper()
	dev, err := uverbs.Open(dev0, uverbs.OpenOptions{})
	must(t, err)
	defer dev.Close()
	if need := uverbs.ODPSend | uverbs.ODPRecv; dev.Attr().ODPCapsUD&need != need {
		ud = "send over ud on demand"
	}
	const missing = "CREATE_QP with OutOfOrder"
	if k := testenv.Kernel(t); slices.Compare(k[:], []int{6, 13}) < 0 {
		return ud, missing
	}
	if testenv.Modelled() { // which has it for each type
		return ud, ""
	}
	pd, err := dev.AllocPD()
	must(t, err)
	defer pd.Close()
	cq, err := dev.CreateCQ(uverbs.CQOptions{})
	must(t, err)
	defer cq.Close()
	qp, err := pd.CreateQP(uverbs.QPOptions{SendCQ: cq, RecvCQ: cq, OutOfOrder: true})
	if errors.Is(err, errors.ErrUnsupported) {
		return ud, missing
	}
	must(t, err)
	must(t, qp.Close())
	return ud, ""
}

// TestPerfCard runs verbs perf with the options that only a card has, with itself and with perftest.
func TestPerfCard(t *testing.T) {
	testenv.Tags(t, testenv.Perftest)
	needsDC(t)
	_, port := perfServe(t)
	ud, outOfOrder := cardLacks(t)
	for _, c := range []struct {
		line    string
		missing string // in the error with which it must fail
	}{
		{"send-bw --odp -V", ""},
		{"send-lat --odp -V", ""},
		{"write-bw --odp -V -t rc", ""},
		{"read-bw --odp -V", ""},
		{"send-bw --odp -V -t ud -s 512", ud},
		{"write-bw --use-dm -s 4096", ""},
		{"send-lat --use-dm -s 1024", ""},
		{"send-bw --use-dm -t ud -s 512", ""},
		{"write-bw --use-dm -q 64", "--use-dm: mlx5_0: uverbs: AllocDM: length is "},
		{"write-bw --ph 1", "--ph: mlx5_0: uverbs: ALLOC_DMAH"},
		{"read-bw --ph 2 --tph-mem vm --cpu-id 0", "--ph: mlx5_0: uverbs: ALLOC_DMAH"},
		{"write-bw --use-null-mr", ""},
		{"read-bw --use-null-mr", ""},
		{"write-bw --relaxed-ordering -V", ""},
		{"send-bw --use-srq -t dc -q 3 -V --imm", ""},
		{"send-bw --log-dci-streams 2 -t dc -V", ""},
		{"write-bw --log-dci-streams 3 -t dc -V -q 2", ""},
		{"send-bw --use-ooo -V", outOfOrder},
		{"send-bw --use-ooo -V -t dc", outOfOrder},
		{"write-bw --use-ooo -V -t uc", outOfOrder},
		{"read-bw --use-ooo -V --cm", outOfOrder},
	} {
		t.Run(c.line, func(t *testing.T) {
			args := strings.Fields(c.line)
			out, err := perf(t, port, args[0], append(args[1:], "-n", "200")...)
			if (err != nil) != (c.missing != "") || !strings.Contains(out, c.missing) {
				t.Errorf("%v, want an error with %q: %s", err, c.missing, out)
			}
		})
	}
	for _, c := range []struct{ test, theirs, ours string }{
		{"send-bw", "--odp", "--odp"},
		{"write-bw", "--odp -b", "--odp --both"},
		{"send-bw", "-c DC --log_dci_streams=2 -q 2", "-t dc --log-dci-streams 2 -q 2"},
		{"read-bw", "", "--use-null-mr"},
		{"send-bw", "", "--use-dm"},
		{"write-bw", "", "--use-dm"},
		{"send-bw", "--disable_pcie_relaxed", "--relaxed-ordering"},
	} {
		for _, server := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s %s with perftest server=%v", c.test, c.ours, server), func(t *testing.T) {
				r := perftestPair{test: c.test, server: server, theirs: "-F -s 64 -n 200 " + c.theirs, ours: "-s 64 -n 200 " + c.ours, row: 64}.play(t)
				if len(r.Results) != 1 || r.Results[0].Iterations == 0 {
					t.Errorf("%+v", r)
				}
			})
		}
	}
}

// Package pyverbs runs tests that rdma-core has for its own libmlx5 and libefa, written in Python, on the modelled
// cards of test/hca and test/efa: like test/suites/control, they tell whether it is the model that is at fault.
package pyverbs

import (
	"compress/gzip"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/goverbs/goverbs/test/internal/program"
	"github.com/goverbs/goverbs/test/testenv"
)

// must fails a test on an error.
var must = testenv.Must

func TestMain(m *testing.M) {
	os.Exit(testenv.Main(m, ""))
}

// installed is where Debian's package of rdma-core's bindings for Python has the tests.
const installed = "/usr/share/doc/rdma-core/tests"

// TestDC runs the tests of DC, except those that need objects of DEVX.
func TestDC(t *testing.T) {
	passes(t, 0, "test_mlx5_dc.DCTest", "test_dc_rdma_write", "test_dc_send", "test_dc_rdma_write_stream")
}

// TestSourcePort sets the UDP source port of a QP by DEVX.
func TestSourcePort(t *testing.T) {
	testenv.Guest(t)
	testenv.NeedsRoCE(t, "UDP")
	passes(t, testenv.TheRig().GID, "test_mlx5_udp_sport.UdpSportTestCase", "test_rc_modify_udp_sport")
}

// TestLAG has QPs send by the ports of a LAG, which they set by DEVX.
func TestLAG(t *testing.T) {
	testenv.Guest(t)
	testenv.NeedsCard(t, "LAG", testenv.CardIs("lag"))
	passes(t, testenv.TheRig().GID, "test_mlx5_lag_affinity.LagPortTestCase", "test_raw_modify_lag_port", "test_rc_modify_lag_port", "test_ud_modify_lag_port")
}

// TestOutOfOrder runs the tests of QPs that use receives in any order, which newer versions of rdma-core have.
func TestOutOfOrder(t *testing.T) {
	testenv.Boot(t, "GOVERBS_PYVERBS_NEWEST", "control/pyverbs-newest")
	passes(t, testenv.TheRig().GID, "test_mlx5_ooo_qp.DvOOOQPTest", "test_ooo_qp_bad_flow", "test_ooo_qp_send_traffic", "test_ooo_qp_rdma_write_imm_traffic")
}

// TestDCStreams runs the tests in which streams of a DCI fail. The first resets the streams by DEVX, and the second
// resets the QP when it has failed. Newer versions of rdma-core have them.
func TestDCStreams(t *testing.T) {
	testenv.Boot(t, "GOVERBS_PYVERBS_NEWEST", "control/pyverbs-newest")
	passes(t, testenv.TheRig().GID, "test_mlx5_dc.DCTest", "test_dc_stream_ids_recovery", "test_dc_stream_qp_recovery")
}

// passes runs tests of rdma-core, which are of a class in a module, on an entry of the GID table. None of them
// may be skipped.
func passes(t *testing.T, gid int, class string, tests ...string) {
	t.Helper()
	testenv.Guest(t)
	module, _, _ := strings.Cut(class, ".")
	var names []string
	for _, name := range tests {
		names = append(names, class+"."+name)
	}
	run(t, "mlx5_0", gid, []string{module + ".py"}, names)
}

// run runs tests of files of rdma-core on a device. All must pass.
func run(t *testing.T, device string, gid int, files, tests []string) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "tests")
	// The first file imports the modules in an order in which they find each other.
	unpack(t, dir, append(files, "test_addr.py")...)
	line := []string{"python3", filepath.Join(dir, "run_tests.py"), "--dev", device, "--gid", strconv.Itoa(gid), "-v"}
	for _, name := range tests {
		line = append(line, "tests."+name)
	}
	p := program.Launch(t, line...)
	p.KeepRunning()
	<-p.Ended // many tests, and Python is slow to begin: the boot has a limit
	out := p.Wait(t)
	if got := strings.Count(out, "... ok"); got != len(tests) {
		t.Errorf("%d tests are ok, want %d:\n%s", got, len(tests), out)
	}
}

// unpack copies rdma-core's tests to a directory, of the files named test_* only some.
func unpack(t *testing.T, dir string, tests ...string) {
	t.Helper()
	must(t, os.Mkdir(dir, 0o755))
	files, err := filepath.Glob(installed + "/*")
	if err != nil || len(files) == 0 {
		t.Fatalf("no tests in %s: %v", installed, err)
	}
	for _, f := range files {
		name := strings.TrimSuffix(filepath.Base(f), ".gz")
		if strings.HasPrefix(name, "test_") && !slices.Contains(tests, name) {
			continue
		}
		must(t, unzip(f, filepath.Join(dir, name)))
	}
}

// unzip copies a file, which may be compressed.
func unzip(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	r := io.Reader(in)
	if strings.HasSuffix(from, ".gz") {
		if r, err = gzip.NewReader(in); err != nil {
			return err
		}
	}
	b, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	return os.WriteFile(to, b, 0o644)
}

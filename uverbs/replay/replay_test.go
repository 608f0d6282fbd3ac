//go:build unix

package replay_test

import (
	"bytes"
	"context"
	"embed"
	"errors"
	"io"
	"io/fs"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/replay"
)

// records are embedded, so that the tests find them in a guest as well. See "make golden".
//
//go:embed testdata/*.record testdata/*.txt
var records embed.FS

// read returns a file of testdata.
func read(t testing.TB, name string) []byte {
	t.Helper()
	b, err := records.ReadFile("testdata/" + name)
	must(t, err)
	return b
}

// start replays a record, and opens the device.
func start(t *testing.T, record []byte, o replay.Options) (*replay.Device, *uverbs.Device) {
	t.Helper()
	r := value(replay.New(bytes.NewReader(record), o))(t)
	t.Cleanup(func() { must(t, r.Close()) })
	return r, value(uverbs.Open(r.Name(), uverbs.OpenOptions{}))(t)
}

// TestOurs replays what the library did on a device of the kernel: all commands are the same.
func TestOurs(t *testing.T) {
	for _, name := range []string{"rxe", "siw", "mlx5_roce", "mlx5_ib"} {
		t.Run(name, func(t *testing.T) {
			r, d := start(t, read(t, "ours_"+name+".record"), replay.Options{})
			exercise(t, d)
			must(t, d.Close(), r.Err())
			for _, c := range r.Unused() {
				t.Errorf("recorded, but not done: %s", c)
			}
		})
	}
}

// modifyQP finds the input of the second MODIFY_QP in a record, which goes by write().
func modifyQP(t *testing.T, record []byte) (from, to int) {
	t.Helper()
	const begin = `"request":"1a000000` // IB_USER_VERBS_CMD_MODIFY_QP
	first := bytes.Index(record, []byte(begin))
	second := first + 1 + bytes.Index(record[first+1:], []byte(begin))
	from = second + len(`"request":"`)
	to = from + bytes.IndexByte(record[from:], '"')
	if first < 0 || to-from != 2*120 {
		t.Fatalf("MODIFY_QP has %d digits at %d", to-from, from)
	}
	return from, to
}

// TestEveryByte: each byte of a command counts.
func TestEveryByte(t *testing.T) {
	record := read(t, "ours_rxe.record")
	from, to := modifyQP(t, record)
	for i := from + 2*8; i < to; i += 2 { // behind the header
		changed := bytes.Clone(record)
		changed[i] = "123456789abcdef0"[strings.IndexByte("0123456789abcdef", changed[i])]
		t.Run(strconv.Itoa(i-from), func(t *testing.T) {
			r, d := start(t, changed, replay.Options{})
			exercise(t, d)
			must(t, d.Close())
			if err := r.Err(); err == nil || !strings.Contains(err.Error(), "replay: modify QP (line 2") {
				t.Errorf("the digit %d of MODIFY_QP is another: %v", i-from, err)
			}
		})
	}
}

// TestDifferences: what is not as in the record is named, with both values.
func TestDifferences(t *testing.T) {
	const cqe = `{"id":1,"len":4,"flags":1,"data":"6400000000000000"},`
	for _, test := range []struct{ old, new, want string }{
		{`002000000000000000`, `003000000000000000`, "register MR (line 8 of the record): ib_uverbs_reg_mr.length is 8192, the record has 12288"},
		{cqe, strings.Replace(cqe, "64", "65", 1), "create CQ (line 10 of the record): UVERBS_ATTR_CREATE_CQ_CQE.cqe is 100, the record has 101"},
		{cqe, "", "create CQ (line 10 of the record): UVERBS_ATTR_CREATE_CQ_CQE.cqe is 100, which is not in the record"},
		{cqe, cqe + `{"id":9,"len":0,"flags":1,"data":"0700000000000000"},`,
			"create CQ (line 10 of the record): UVERBS_ATTR_CREATE_CQ_BUFFER_LENGTH.buffer_length is missing, the record has 7"},
		{`"length":20480,`, `"length":4096,`, "map memory (line 11 of the record): length is 20480, the record has 4096"},
	} {
		t.Run(test.want, func(t *testing.T) {
			record := string(read(t, "ours_rxe.record"))
			if !strings.Contains(record, test.old) {
				t.Fatalf("the record has no %s", test.old)
			}
			r, d := start(t, []byte(strings.Replace(record, test.old, test.new, 1)), replay.Options{})
			exercise(t, d)
			must(t, d.Close())
			if err := r.Err(); err == nil || err.Error() != "replay: "+test.want {
				t.Errorf("%v", err)
			}
		})
	}
}

// TestMayDiffer: a field that is named there is not compared, and the first difference is the one that is reported.
func TestMayDiffer(t *testing.T) {
	record := strings.NewReplacer(`002000000000000000`, `003000000000000000`, `"length":20480,`, `"length":4096,`).Replace(string(read(t, "ours_rxe.record")))
	for field, want := range map[string]string{"access_flags": "register MR", "length": "map memory"} {
		t.Run(field, func(t *testing.T) {
			r, d := start(t, []byte(record), replay.Options{MayDiffer: []string{field}})
			exercise(t, d)
			must(t, d.Close())
			if err := r.Err(); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%v, want that %q differs", err, want)
			}
		})
	}
}

// TestMissing: a command that was not recorded fails as on a kernel that does not have it, and is reported.
func TestMissing(t *testing.T) {
	r, d := start(t, read(t, "ours_rxe.record"), replay.Options{})
	pd := value(d.AllocPD())(t)
	if _, err := d.AllocPD(); !errors.Is(err, syscall.EPROTONOSUPPORT) {
		t.Errorf("a second PD: %v, want EPROTONOSUPPORT", err)
	}
	if err := r.Err(); err == nil || err.Error() != `replay: the record has no (or no further) command "allocate PD"` {
		t.Errorf("the difference is %v", err)
	}
	if unused := strings.Join(r.Unused(), "; "); !strings.HasPrefix(unused, "register MR (line 8 of the record); create completion channel (line 9 of the record); ") ||
		!strings.HasSuffix(unused, "deallocate PD (line 38 of the record)") {
		t.Errorf("not done: %s", unused)
	}
	must(t, pd.Close(), d.Close())
}

// TestContexts: the end of a context does not touch the event channels of another one.
func TestContexts(t *testing.T) {
	record := read(t, "ours_rxe.record")
	r, d := start(t, record, replay.Options{Also: []io.Reader{bytes.NewReader(record)}})
	other := value(uverbs.Open(r.Name(), uverbs.OpenOptions{}))(t)
	channel := value(d.CreateCompChannel())(t)
	must(t, other.Close())
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := channel.Next(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a wait for an event: %v, want that it lasts", err)
	}
	must(t, channel.Close(), d.Close(), r.Err())
}

// TestRefused: a call that failed when it was recorded fails in the same way.
func TestRefused(t *testing.T) {
	record := regexp.MustCompile(`("call":"mmap".*),"result":\d+`).ReplaceAllString(string(read(t, "ours_rxe.record")), `$1,"errno":"ENOMEM"`)
	r, d := start(t, []byte(record), replay.Options{})
	channel := value(d.CreateCompChannel())(t)
	if _, err := d.CreateCQ(uverbs.CQOptions{Size: 100, Channel: channel}); !errors.Is(err, syscall.ENOMEM) {
		t.Errorf("a CQ without memory: %v, want ENOMEM", err)
	}
	must(t, channel.Close(), d.Close(), r.Err())
}

// TestRecords: what is no record of a device that can be replayed is refused, with the reason.
func TestRecords(t *testing.T) {
	record := string(read(t, "ours_rxe.record"))
	for _, test := range []struct {
		record string
		o      replay.Options
		want   string
	}{
		{"", replay.Options{}, "replay: the record is empty"},
		{record[:len(record)/2], replay.Options{}, "replay: the record is cut"},
		{strings.Replace(record, `"version":1`, `"version":9`, 1), replay.Options{}, "replay: the version of the record is 9, allowed: 1"},
		{record, replay.Options{Device: "mlx5_0"}, `replay: the device is "mlx5_0", the record has rxe0`},
		{strings.ReplaceAll(record, `"driver":14`, `"driver":2`), replay.Options{}, "replay: the driver of rxe0 is mlx4, allowed: rxe, mlx5, siw"},
		{strings.ReplaceAll(record, `"device":"rxe0",`, ""), replay.Options{}, "replay: the record has no open device"},
		{record, replay.Options{Also: []io.Reader{bytes.NewReader(read(t, "ours_siw.record"))}},
			"replay: record 0 of Also: the driver of siw0 is siw, that of rxe0 is rxe"},
	} {
		r, err := replay.New(strings.NewReader(test.record), test.o)
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%v, want %q", err, test.want)
		}
		if err == nil {
			r.Close()
		}
	}
	r, d := start(t, []byte(record), replay.Options{Name: "twice"})
	must(t, d.Close())
	if _, err := replay.New(strings.NewReader(record), replay.Options{Name: "twice"}); !errors.Is(err, fs.ErrExist) || r.Name() != "twice" {
		t.Errorf("a second device named %s: %v", r.Name(), err)
	}
}

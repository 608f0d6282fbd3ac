package s3rdma

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/iotest"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
)

// TestReader reads the memory of tokens in pieces of many sizes, with few and many chunks.
func TestReader(t *testing.T) {
	for _, depth := range []int{1, 2, 7} {
		r := newRig(t, InitiatorOptions{Chunk: 4096, Depth: depth})
		g := r.region(t, 50_001)
		fill(g.Bytes(), 4)
		_, token := r.offer(t, g, http.MethodPut)
		for _, piece := range []int{1, 1000, 4096, 100_000} {
			rd, err := r.initiator.Reader(t.Context(), token)
			testenv.Must(t, err)
			var got []byte
			for p := make([]byte, piece); ; {
				n, err := rd.Read(p)
				got = append(got, p[:n]...)
				if err == io.EOF {
					break
				}
				testenv.Must(t, err)
			}
			if !bytes.Equal(got, g.Bytes()) {
				t.Errorf("depth %d, pieces of %d: other data, %d bytes", depth, piece, len(got))
			}
			closed(t, rd)
			closed(t, rd)
		}
		rd, err := r.initiator.Reader(t.Context(), token)
		testenv.Must(t, err)
		var all bytes.Buffer
		first := make([]byte, 10)
		_, err = io.ReadFull(rd, first)
		testenv.Must(t, err)
		if n, err := rd.WriteTo(&all); n != 50_001-10 || err != nil || !bytes.Equal(append(first, all.Bytes()...), g.Bytes()) {
			t.Errorf("depth %d: WriteTo returns %d, %v, or other data", depth, n, err)
		}
		closed(t, rd)
		if _, err := rd.Read(first); !errors.Is(err, errDone) {
			t.Errorf("Read after Close: %v", err)
		}
		rd, err = r.initiator.Reader(t.Context(), token) // one that ends early
		testenv.Must(t, err)
		_, err = rd.Read(first)
		testenv.Must(t, err)
		closed(t, rd)
	}
}

// TestWriter writes to the memory of tokens in pieces of many sizes.
func TestWriter(t *testing.T) {
	r := newRig(t, InitiatorOptions{Chunk: 4096, Depth: 2})
	g := r.region(t, 50_001)
	_, token := r.offer(t, g, http.MethodGet)
	want := make([]byte, g.Len())
	for i, piece := range []int{1, 1000, 4096, 50_001} {
		fill(want, uint64(i))
		w, err := r.initiator.Writer(t.Context(), token)
		testenv.Must(t, err)
		for rest := want; len(rest) > 0; {
			n, err := w.Write(rest[:min(piece, len(rest))])
			testenv.Must(t, err)
			rest = rest[n:]
		}
		if n, err := w.Write([]byte{1}); n != 0 || !errors.Is(err, errTooLong) {
			t.Errorf("a byte too many: Write returns %d, %v", n, err)
		}
		closed(t, w)
		closed(t, w)
		if !bytes.Equal(g.Bytes(), want) {
			t.Errorf("pieces of %d: other data", piece)
		}
	}
	for name, from := range map[string]func(io.Reader) io.Reader{"whole": func(r io.Reader) io.Reader { return r }, "halves": iotest.HalfReader, "end with data": iotest.DataErrReader, "bytes": iotest.OneByteReader} {
		fill(want, 77)
		clear(g.Bytes())
		w, err := r.initiator.Writer(t.Context(), token)
		testenv.Must(t, err)
		if n, err := w.ReadFrom(from(bytes.NewReader(want))); n != int64(len(want)) || err != nil {
			t.Errorf("%s: ReadFrom returns %d, %v", name, n, err)
		}
		closed(t, w)
		if !bytes.Equal(g.Bytes(), want) {
			t.Errorf("%s: other data", name)
		}
		w, err = r.initiator.Writer(t.Context(), token)
		testenv.Must(t, err)
		if n, err := w.ReadFrom(from(bytes.NewReader(append(want, 1)))); n != int64(len(want)) || !errors.Is(err, errTooLong) {
			t.Errorf("%s: ReadFrom with a byte too many returns %d, %v", name, n, err)
		}
		testenv.Must(t, w.Abort())
	}
}

// TestPull moves memory of a token to and from a region of the server, without copies.
func TestPull(t *testing.T) {
	r := newRig(t, InitiatorOptions{Chunk: 4096, Depth: 3})
	g := r.region(t, 50_001)
	fill(g.Bytes(), 5)
	buf, err := uverbs.AllocBuffer(60_000, uverbs.BufferOptions{})
	testenv.Must(t, err)
	defer closed(t, buf)
	mr, err := r.initiator.PD().RegMR(buf, uverbs.MROptions{Access: uverbs.AccessLocalWrite})
	testenv.Must(t, err)
	defer closed(t, mr)
	x, token := r.offer(t, g, http.MethodPut)
	testenv.Must(t, r.initiator.Pull(t.Context(), token, mr, 7))
	x.loan.end(false)
	if !bytes.Equal(buf.Bytes()[7:][:g.Len()], g.Bytes()) {
		t.Error("Pull: other data")
	}
	fill(buf.Bytes(), 6)
	_, token = r.offer(t, g, http.MethodGet)
	testenv.Must(t, r.initiator.Push(t.Context(), token, mr, 9))
	if !bytes.Equal(buf.Bytes()[9:][:g.Len()], g.Bytes()) {
		t.Error("Push: other data")
	}
	for _, offset := range []int{-1, 9_999 + 1, 60_001} {
		if err := r.initiator.Pull(t.Context(), token, mr, offset); err == nil || !strings.Contains(err.Error(), "the token has 50001 bytes") {
			t.Errorf("Pull at %d: %v", offset, err)
		}
	}
}

// TestLimits has more transfers than there may be: those of a peer are declined, those of all wait.
func TestLimits(t *testing.T) {
	r := newRig(t, InitiatorOptions{Transfers: 2, PerPeer: 2})
	g := r.region(t, 8192)
	_, token := r.offer(t, g, http.MethodPut)
	other := token
	other.GID[0] ^= 1 // another peer, which nobody reaches
	a, err := r.initiator.Reader(t.Context(), token)
	testenv.Must(t, err)
	b, err := r.initiator.Reader(t.Context(), token)
	testenv.Must(t, err)
	if _, err := r.initiator.Reader(t.Context(), token); !errors.Is(err, errTooMany) {
		t.Errorf("a third transfer of a peer: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := r.initiator.Reader(ctx, other); !errors.Is(err, context.Canceled) {
		t.Errorf("a third transfer: %v", err)
	}
	closed(t, a)
	c, err := r.initiator.Reader(t.Context(), token)
	testenv.Must(t, err)
	closed(t, b)
	closed(t, c)
	if n := len(r.initiator.peers); n != 0 {
		t.Errorf("%d peers are counted at the end", n)
	}
	for _, test := range []struct {
		o    InitiatorOptions
		want string
	}{
		{InitiatorOptions{Transfers: -1}, "Transfers is -1, want 1 to 4096"}, {InitiatorOptions{Transfers: 2, PerPeer: 3}, "PerPeer is 3, want 1 to 2"},
		{InitiatorOptions{Chunk: 4095}, "Chunk is 4095, want 4096 to 1073741824"}, {InitiatorOptions{Depth: 65}, "Depth is 65, want 1 to 64"},
		{InitiatorOptions{Networks: everywhere}, ""}, {InitiatorOptions{Networks: make([]netip.Prefix, 1)}, "Networks[0] is not a prefix"},
	} {
		if err := test.o.defaults(); test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("%+v: %v, want %q", test.o, err, test.want)
		}
	}
}

// TestNoDC makes targets and initiators on devices that do not have DC, or not as is wanted.
func TestNoDC(t *testing.T) {
	testenv.Guest(t)
	dev := openDevice(t, 0)
	path := uverbs.PathOptions{}
	if testenv.TheRig().Driver == "mlx5" {
		path.Port = 200
	}
	_, err := NewTarget(dev, TargetOptions{Path: path})
	_, err2 := NewInitiator(dev, InitiatorOptions{Path: path})
	for _, err := range []error{err, err2} {
		if _, ok := errors.AsType[*uverbs.FeatureError](err); err == nil || ok != (path.Port == 0) {
			t.Errorf("%v", err)
		}
	}
}

// TestRegion uses regions in ways that they do not allow.
func TestRegion(t *testing.T) {
	r := newRig(t, InitiatorOptions{})
	g := r.region(t, 8192)
	get := func(offset, n int) error {
		req, _ := http.NewRequest(http.MethodGet, "http://h/b/k", nil)
		x, err := g.Offer(t.Context(), req, offset, n)
		if err == nil {
			x.loan.end(false)
		}
		return err
	}
	for _, at := range [][2]int{{-1, 1}, {0, 0}, {0, 8193}, {8192, 1}, {1, -1}, {1 << 62, 1 << 62}} {
		if err := get(at[0], at[1]); err == nil || !strings.Contains(err.Error(), "of the region, want 1 to 8192 bytes within it") {
			t.Errorf("%v: %v", at, err)
		}
	}
	testenv.Must(t, get(8191, 1))
	req, _ := http.NewRequest(http.MethodPost, "http://h/b/k", nil)
	if _, err := g.Offer(t.Context(), req, 0, 1); err == nil || !strings.Contains(err.Error(), `the method is "POST", want GET or PUT`) {
		t.Errorf("POST: %v", err)
	}
	x, _ := r.offer(t, g, http.MethodGet)
	if err := get(0, 1); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("a second offer: %v", err)
	}
	if err := g.Close(); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("Close of a region that is offered: %v", err)
	}
	if err := r.target.Close(); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("Close of a target with a region: %v", err)
	}
	x.loan.end(false)
	closed(t, g)
	closed(t, g)
	if err := get(0, 1); !errors.Is(err, os.ErrClosed) {
		t.Errorf("an offer of a closed region: %v", err)
	}
	for _, size := range []int{0, -1, 1 << 32} {
		if _, err := r.target.Alloc(size, uverbs.BufferOptions{}); err == nil || !strings.Contains(err.Error(), "want 1 to 4294967295") {
			t.Errorf("Alloc(%d): %v", size, err)
		}
	}
	closed(t, r.target)
	if _, err := r.target.Alloc(4096, uverbs.BufferOptions{}); !errors.Is(err, os.ErrClosed) {
		t.Errorf("Alloc of a closed target: %v", err)
	}
}

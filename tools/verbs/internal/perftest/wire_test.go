package perftest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/goverbs/goverbs/uverbs/ib"
)

var someGID = ib.GID{10: 0xff, 0xff, 10, 1, 0, 2}

// TestRecordText compares with what perftest sends.
func TestRecordText(t *testing.T) {
	r := Record{LID: 0x1f, OutReads: 0x80, QPN: 0x11, PSN: 0xeec38e, RKey: 0x36f, Addr: 0x561643bca000, GID: someGID, SRQN: 7}
	const head = "001f:0080:000011:eec38e:0000036f:0000561643bca000:"
	for _, c := range []struct {
		gid  bool
		want string
	}{
		{true, head + "00:00:00:00:00:00:00:00:00:00:ff:ff:0a:01:00:02:00000007:\x00"},
		{false, head + "00000007\x00"},
	} {
		got := r.text(c.gid)
		if string(got) != c.want {
			t.Errorf("%q, expected %q", got, c.want)
		}
		if n, err := textForm(got[:textLen]); n != len(got) || err != nil {
			t.Errorf("%q has the form of %d bytes, expected %d (%v)", got, n, len(got), err)
		}
		want := r
		if !c.gid {
			want.GID = ib.GID{}
		}
		if back, err := parseText(got); err != nil || back != want {
			t.Errorf("%+v, expected %+v (%v)", back, want, err)
		}
	}
	for _, bad := range []string{
		"00001f:80:000011:eec38e:0000036f:0000561643bca000:00000007\x00", // widths
		"001f:0080:000011:eec38e:0000036f:0000561643bca000-00000007\x00",
		"001f:0080:000011:eec38e:0000036f:0000561643bca000:0000000g\x00",
		head + "00000007 ",
		head + "7\x00",
	} {
		if r, err := parseText([]byte(bad)); err == nil || !strings.Contains(err.Error(), "expected a record of perftest") {
			t.Errorf("%q: %+v, %v", bad, r, err)
		}
	}
	for _, validating := range []string{
		head + "0000561643bcb000:00000007\x00",
		head + "0000561643bcb000:00:00:00:00:00:00:00:00:00:00:ff:ff:0a:01:00:02:00000007:\x00",
	} {
		if n, err := textForm([]byte(validating)[:textLen]); !errors.Is(err, ErrValidates) {
			t.Errorf("%q: %d, %v", validating, n, err)
		}
	}
}

// TestRecordBinary compares with what perftest sends; 6.29 has another address in the middle,
// which is 0 unless it compares data.
func TestRecordBinary(t *testing.T) {
	r := Record{LID: 0x1f, OutReads: 0x80, QPN: 0x12, PSN: 0x96222b, RKey: 0x36f, Addr: 0x55c2077cd000, GID: someGID, SRQN: 7, GIDIndex: 1}
	want := "\x00\x00\x00\x1f\x00\x00\x00\x80\x00\x00\x00\x12\x00\x96\x22\x2b\x00\x00\x03\x6f\x00\x00\x00\x00\x00\x00\x55\xc2\x07\x7c\xd0\x00" +
		string(someGID[:]) + "\x00\x00\x00\x07\x00\x00\x00\x01"
	got := r.binary()
	if string(got) != want {
		t.Errorf("%q, expected %q", got, want)
	}
	for _, b := range [][]byte{got, append(append(bytes.Clone(got[:32]), make([]byte, 8)...), got[32:]...)} {
		if back, err := parseBinary(b); err != nil || back != r {
			t.Errorf("%+v, expected %+v (%v)", back, r, err)
		}
	}
	validating := append(append(bytes.Clone(got[:32]), 1, 2, 3, 4, 5, 6, 7, 8), got[32:]...)
	for _, c := range []struct {
		b    []byte
		want string
	}{
		{validating, "the peer runs with --data_validation"},
		{got[:55], "got a message of 55 bytes, expected a record of perftest, 56 bytes"},
		{append([]byte{1}, got[1:]...), "LID 0x100001f, expected up to 0xffff"},
		{append(append(bytes.Clone(got[:8]), 1), got[9:]...), "QP number 0x1000012, expected up to 0xffffff"},
	} {
		if _, err := parseBinary(c.b); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v, expected %q", err, c.want)
		}
	}
}

// TestVersions: who can be spoken to.
func TestVersions(t *testing.T) {
	pad := func(s string) []byte { return append([]byte(s), make([]byte, versionLen-len(s))...) }
	for v, negotiating := range map[string]bool{"5.70": false, "6.06": false, "6.24": false, "6.27": false, "6.28": true, "6.29": true, "7.0": true} {
		if got, err := checkVersion(pad(v)); got != v || err != nil || atLeast(v, negotiates) != negotiating {
			t.Errorf("%s: %q, %v, negotiates: %v", v, got, err, atLeast(v, negotiates))
		}
	}
	for given, want := range map[string]string{
		string(pad("5.69")):         "perftest 5.69, which is too old: expected 5.70 or newer",
		string(pad("")):             "not perftest",
		string(pad("6.06\x00x")):    "not perftest",
		string(pad("NaN")):          "not perftest",
		"6.060000000000000":         "not perftest",
		"GET / HTTP/1.1\r\n":        "got \"GET / HTTP/1.1\\r\\n\", expected its version, such as \"6.06\"",
		"\xff\x00\x00\x00000000000": "not perftest",
	} {
		if v, err := checkVersion([]byte(given)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %q, %v, expected %q", given, v, err, want)
		}
	}
}

// FuzzRecord: no bytes make a parser panic, and what one takes is sent as it was.
func FuzzRecord(f *testing.F) {
	for _, r := range recordings(f) {
		for _, m := range r.all {
			f.Add(m.data)
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) >= textLen {
			textForm(b[:textLen])
		}
		if r, err := parseText(b); err == nil {
			got := r.text(len(b) == textGIDLen)
			if !bytes.Equal(got, bytes.ToLower(b)) {
				t.Errorf("%q was read as %q", b, got)
			}
		}
		if r, err := parseBinary(b); err == nil && len(b) == binaryLen {
			got := r.binary()
			copy(got[20:24], b[20:]) // padding
			if !bytes.Equal(got, b) {
				t.Errorf("%x was read as %x", b, got)
			}
		}
		if v, err := checkVersion(b); err == nil && (v == "" || len(v) > len(b)) {
			t.Errorf("%q is version %q", b, v)
		}
	})
}

// FuzzPeer: a session with a peer that says anything ends, without a panic.
func FuzzPeer(f *testing.F) {
	for _, r := range recordings(f) {
		for _, client := range []bool{false, true} {
			var all []byte
			for _, m := range r.all {
				if m.client == client {
					all = append(all, m.data...)
				}
			}
			f.Add(all, client, r.command[len(r.command)-1])
		}
	}
	f.Fuzz(func(t *testing.T, said []byte, server bool, kind byte) {
		ops := []string{Send, Write, Read, Atomic}
		s := NewSession(&deaf{Reader: bytes.NewReader(said)}, server, true)
		defer s.Close()
		s.Test = Test{Op: ops[kind%4], Latency: kind&4 != 0, Both: kind&12 == 8, Sizes: []int{64}, Iterations: 5}
		if s.Hello(t.Context(), DefaultParams(ib.MTU1024)) == nil {
			s.Play(t.Context(), &fakeEngine{mine: []Record{{QPN: 1, GID: someGID}}})
		}
	})
}

// deaf is a connection on which the peer says what it has to say, whatever it hears.
type deaf struct {
	net.Conn
	io.Reader
}

func (d *deaf) Read(b []byte) (int, error)      { return d.Reader.Read(b) }
func (d *deaf) Write(b []byte) (int, error)     { return len(b), nil }
func (d *deaf) Close() error                    { return nil }
func (d *deaf) SetDeadline(time.Time) error     { return nil }
func (d *deaf) SetReadDeadline(time.Time) error { return nil }

// converse plays against a peer that is the function.
func converse(t *testing.T, server, silent bool, test Test, peer func(c net.Conn)) error {
	t.Helper()
	ours, theirs := pipe(t)
	go func() {
		defer theirs.Close()
		theirs.SetDeadline(time.Now().Add(time.Minute))
		peer(theirs)
	}()
	s := NewSession(ours, server, true)
	defer s.Close()
	s.step, s.run = time.Minute, time.Minute
	if silent {
		s.step, s.run = time.Second, time.Second
	}
	s.Test = test
	if err := s.Hello(t.Context(), DefaultParams(ib.MTU1024)); err != nil {
		return err
	}
	_, err := s.Play(t.Context(), &fakeEngine{mine: []Record{{QPN: 1, GID: someGID}}, reports: []Report{{Size: 64, Iterations: 5}}})
	return err
}

// TestBadPeers: what is said of peers that do not go on as they should.
func TestBadPeers(t *testing.T) {
	readBW := Test{Op: Read, Type: "RC", Sizes: []int{64}, Iterations: 5}
	sendLat := Test{Op: Send, Type: "RC", Latency: true, Sizes: []int{64}, Iterations: 5}
	say := func(c net.Conn, what ...string) {
		for _, w := range what {
			io.WriteString(c, w)
		}
		io.Copy(io.Discard, c)
	}
	const version, numbers = "6.06\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00", "\x00\x00\x10\x00\x00\x00\x00\x40"
	record := string((&Record{QPN: 2, GID: someGID}).text(true))
	other := string((&Record{QPN: 3, GID: someGID}).text(true))
	report := func(size, iterations uint64, rate float64) (all string) {
		r := Report{Size: size, Iterations: iterations, Rate: rate}
		for _, f := range r.fields() {
			all += string(f[:])
		}
		return all
	}
	for name, c := range map[string]struct {
		server bool
		test   Test
		said   []string
		want   string
	}{
		"nothing":      {true, sendLat, nil, "exchange of versions with perftest: the peer is silent: nothing came for 1s: expected the version"},
		"http":         {true, sendLat, []string{"GET / HTTP/1.1\r\n\r\n"}, "the peer is not perftest: got \"GET / HTTP/1.1\\r\\n\""},
		"half":         {false, sendLat, []string{"6.06"}, "got 4 of 16 bytes, \"6.06\": the peer is silent"},
		"page size":    {false, sendLat, []string{version, "\xff\xff\xff\xff"}, "exchange of page sizes with perftest: got 4294967295, expected 1 to 1073741824"},
		"cache line":   {false, sendLat, []string{version, "\x00\x00\x10\x00\x00\x00\x00\x00"}, "exchange of cache line sizes with perftest: got 0, expected 1 to 65536"},
		"mtu":          {false, sendLat, []string{version, numbers, "9\x00"}, "exchange of MTUs with perftest: got \"9\\x00\", expected"},
		"record":       {true, sendLat, []string{version, numbers, "3\x00", strings.Repeat("x", textGIDLen)}, "expected a record of perftest"},
		"no GID":       {false, sendLat, []string{version, numbers, "3\x00", string((&Record{QPN: 2}).text(false))}, "exchange of records after connecting with perftest: the peer is silent"},
		"validating":   {true, sendLat, []string{version, numbers, "3\x00", record[:50] + "0000561643bcb000:" + record[50:]}, "--data_validation"},
		"XRC":          {true, sendLat, []string{version, numbers, "3\x00", string((&Record{QPN: 2, GID: someGID, SRQN: 7}).text(true))}, "the peer runs with -c XRC or -c DC, which needs --type xrc or dc here: it must run ib_send_lat -c RC -n 5 -s 64"},
		"6.29 is gone": {false, sendLat, []string{"6.29" + version[4:], numbers, "3\x00", "end"}, "it must run ib_send_lat -c RC -n 5 -s 64, without -D and --data_validation"},
		"reset":        {false, sendLat, []string{version, numbers, "3\x00", "reset"}, "connection reset by peer: it must run ib_send_lat -c RC -n 5 -s 64, without -D"},
		"other test":   {true, readBW, []string{version, numbers, "3\x00", record}, "the peer is silent: nothing came for 1s: it must run ib_read_bw -c RC -n 5 -s 64"},
		"other QPs":    {true, sendLat, []string{version, numbers, "3\x00", record, other, other}, "got the record of QP 0x3, expected that of 0x2: it must run ib_send_lat -c RC -n 5 -s 64"},
		"negotiating":  {true, sendLat, []string{"6.28" + version[4:], numbers, "3\x00", strings.Repeat("\x00\x00\x00\x01", 78)}, "the peer is perftest 6.28, and the first programs of version 6.28 exchange parameters"},
		"6.28 is gone": {false, sendLat, []string{"6.28" + version[4:], numbers, "3\x00", "end"}, "the peer is perftest 6.28"},
		"size":         {true, readBW, []string{version, numbers, "3\x00", record, record, record, record, report(128, 5, 1)}, "the peer has run 5 messages of 128 bytes, and this side expected 5 of 64: it must run ib_read_bw -c RC -n 5 -s 64"},
		"iterations":   {true, readBW, []string{version, numbers, "3\x00", record, record, record, record, report(64, 6, 1)}, "the peer has run 6 messages of 64 bytes, and this side expected 5 of 64: it must run ib_read_bw -c RC -n 5 -s 64"},
		"no number":    {true, readBW, []string{version, numbers, "3\x00", record, record, record, record, report(64, 5, math.NaN())}, "the rate NaN"},
		"silent run":   {true, readBW, []string{version, numbers, "3\x00", record, record, record}, "exchange of the end of the run with perftest: the peer is silent: nothing came for 1s"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := converse(t, c.server, strings.Contains(c.want, "silent"), c.test, func(conn net.Conn) {
				if last := len(c.said) - 1; last >= 0 && (c.said[last] == "end" || c.said[last] == "reset") {
					io.WriteString(conn, strings.Join(c.said[:last], ""))
					b := make([]byte, versionLen+4+4+2+textGIDLen)
					if c.said[last] == "reset" {
						b = b[:versionLen+4+4+2] // who closes with something unread resets
						defer conn.(*net.TCPConn).SetLinger(0)
					}
					io.ReadFull(conn, b)
					return
				}
				say(conn, c.said...)
			})
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, expected %q", err, c.want)
			}
		})
	}
}

// TestCancelled: a session ends with its context, wherever it is.
func TestCancelled(t *testing.T) {
	ours, _ := pipe(t)
	cause := fmt.Errorf("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	time.AfterFunc(20*time.Millisecond, func() { cancel(cause) })
	s := NewSession(ours, true, true)
	s.step = time.Hour
	if err := s.Hello(ctx, DefaultParams(ib.MTU1024)); !errors.Is(err, cause) {
		t.Errorf("%v, expected %v", err, cause)
	}
}

// TestEndOfRun: what comes after the peer's run may take longer than other messages.
func TestEndOfRun(t *testing.T) {
	for file, want := range map[string]string{"send_bw_s64_b": "exchange of reports", "read_bw_s64": "exchange of the end of the run"} {
		r := load(t, "testdata/"+file+".txt")
		ours, theirs := pipe(t)
		go (&replay{r: r, server: false}).serve(theirs)
		s := NewSession(ours, true, true)
		s.step, s.run = time.Hour, time.Nanosecond
		s.Test, _ = r.test(t)
		err := s.Hello(t.Context(), DefaultParams(ib.MTU1024))
		if err == nil {
			_, err = s.Play(t.Context(), &fakeEngine{mine: r.records(t, false), reports: r.reports(false)})
		}
		if s.Close(); !errors.Is(err, errSilent) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, expected %q", err, want)
		}
	}
}

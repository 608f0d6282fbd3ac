package perf

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"
)

// relay passes a control connection on, and one of the sides gets one more message.
type relay struct {
	toClient bool     // the client gets it
	before   int      // the number of the message that it precedes
	extra    *message // nil for none
	drop     string   // a kind that is not passed on
	seen     []message
}

// pass copies what one side sends to the other.
func (r *relay) pass(to, from net.Conn, more bool) error {
	defer to.Close()
	if _, err := io.CopyN(to, from, int64(preambleLen)); err != nil {
		return err
	}
	for n := 0; ; n++ {
		b, err := readFrame(from, func() int { return peersFrame(maxQPs) })
		if err != nil {
			return err
		}
		text := frame(string(b))
		if more {
			m, err := decodeMessage(b, maxQPs)
			if err != nil {
				return err
			}
			if r.seen = append(r.seen, m); m.Kind == r.drop {
				continue
			}
			if r.extra != nil && n == r.before {
				extra, err := json.Marshal(r.extra)
				if err != nil {
					return err
				}
				text = frame(string(extra)) + text
			}
		}
		if _, err := io.WriteString(to, text); err != nil {
			return err
		}
	}
}

// play runs a test through the relay. It returns the client's error, and what the server logs.
func (r *relay) play(t *testing.T, pair softPair, c Config) (said string, err error) {
	t.Helper()
	front, back := listen(t), listen(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var log []string // of the one client
	s := &Server{
		Local: Local{Device: pair[0].Name(), GID: Auto, CPU: Auto},
		Log:   func(format string, args ...any) { log = append(log, fmt.Sprintf(format, args...)) },
	}
	var all sync.WaitGroup
	all.Go(func() {
		if err := s.Serve(ctx, back); err != nil {
			t.Error(err)
		}
	})
	all.Go(func() {
		client, err := front.Accept()
		if err != nil {
			t.Error(err)
			return
		}
		defer client.Close()
		server, err := net.Dial("tcp", back.Addr().String())
		if err != nil {
			t.Error(err)
			return
		}
		back := make(chan error, 1)
		go func() { back <- r.pass(client, server, r.toClient) }()
		_ = r.pass(server, client, !r.toClient) // until one of them hangs up
		<-back
	})
	cl := &Client{Config: c, Local: Local{Device: pair[1].Name(), GID: Auto, CPU: Auto}, Host: "127.0.0.1", Port: front.Addr().(*net.TCPAddr).Port}
	cl.Running = func(int, func() int64) func() {
		if c.Endless {
			cl.Finish()
		}
		return func() {}
	}
	_, err = cl.Run(ctx)
	front.Close()
	cancel()
	all.Wait()
	return strings.Join(log, "\n"), err
}

// TestMessageOrder gives each message of the client and of the server to the other side once more, before each of its
// messages. That is too early or too late, and refused. Only a report before the last one may be taken for it.
func TestMessageOrder(t *testing.T) {
	pair := newSoftPair(t)
	sizes := with(Send, BW, func(c *Config) { c.Both, c.Sizes, c.Iterations = true, []int{64, 64}, 20 })
	endless := with(Send, BW, func(c *Config) { c.Both, c.Endless = true, true })
	for name, c := range map[string]Config{"sizes": sizes, "endless": endless} {
		for _, toClient := range []bool{true, false} {
			honest := relay{toClient: toClient}
			if said, err := honest.play(t, pair, c); err != nil || !strings.Contains(said, " is done: ") {
				t.Fatalf("%s: %v\n%s", name, err, said)
			}
			last := len(honest.seen) - 1
			kinds := map[string]*message{}
			for i := range honest.seen {
				kinds[honest.seen[i].Kind] = &honest.seen[i]
			}
			for kind, extra := range kinds {
				for before := range honest.seen {
					if kind == kindReport && before >= last-1 {
						continue
					}
					r := relay{toClient: toClient, before: before, extra: extra}
					said, err := r.play(t, pair, c)
					if toClient {
						said = fmt.Sprint(err)
					}
					if !refusesOrder(said) {
						t.Errorf("%s: %s before message %d, %s, client %v: %s", name, kind, before, honest.seen[before].Kind, toClient, said)
					}
				}
			}
		}
	}
}

// TestNoFinished: a report before the server has said that it has sent all is refused.
func TestNoFinished(t *testing.T) {
	r := relay{toClient: true, drop: kindFinished}
	said, err := r.play(t, newSoftPair(t), with(Read, BW, func(c *Config) { c.Both, c.Iterations = true, 20 }))
	if err == nil || !strings.Contains(err.Error(), `does not keep to the order of messages: "report" instead of "finished"`) {
		t.Errorf("error is %v\n%s", err, said)
	}
}

// refusesOrder reports whether a text is the error of a message at the wrong time.
func refusesOrder(text string) bool {
	for _, want := range []string{"does not keep to the order of messages", " has come before ", "peers has more than 0 queue pairs", "has started more than", "has not read the token of this test"} {
		if strings.Contains(text, want) {
			return true
		}
	}
	return false
}

package hosts

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/goverbs/goverbs/cm"
	"github.com/goverbs/goverbs/test/testenv"
)

// Ports of the services of host 1.
const (
	echoPort    = "7001" // sends messages back
	streamPort  = "7002" // sends a stream back
	controlPort = "7003" // does what messages say
)

// TestMain has host 1 serve, until host 2 is through with the tests.
func TestMain(m *testing.M) {
	if os.Getenv(roleEnv) != "" {
		os.Exit(play(os.Args[1:]))
	}
	if os.Getenv(testenv.HostEnv) == "1" {
		if err := serve(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	code := m.Run()
	if os.Getenv(testenv.HostEnv) == "2" {
		if err := quit(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// quit ends host 1's part.
func quit() error {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	c, err := dial(ctx, net.JoinHostPort(os.Getenv(testenv.PeerEnv), controlPort), cm.DialOptions{})
	if err != nil {
		return err
	}
	defer c.Close()
	return c.Send(ctx, []byte("quit"))
}

// serve runs the services until it is told to quit.
func serve() error {
	ctx := context.Background()
	end := make(chan error, 4)
	for port, do := range map[string]func(*cm.Conn) error{echoPort: echo, streamPort: echoStream, controlPort: control} {
		l, err := cm.Listen(ctx, ":"+port, cm.ListenOptions{ConnOptions: cm.ConnOptions{KeepAlive: -1, Linger: limit}})
		if err != nil {
			return err
		}
		go func() {
			for {
				c, err := l.Accept(ctx)
				if err != nil {
					end <- err
					return
				}
				go func() {
					err := do(c)
					if err == errQuit {
						err = nil
						end <- nil
					}
					if err = errors.Join(err, c.Close()); err != nil {
						fmt.Println(err) // the test says what to expect
					}
				}()
			}
		}()
	}
	return <-end
}

// echo sends messages back.
func echo(c *cm.Conn) error {
	ctx := context.Background()
	for {
		msg, err := c.Recv(ctx)
		if err == io.EOF {
			return nil
		}
		if err == nil {
			err = c.Send(ctx, msg)
		}
		if err != nil {
			return err
		}
	}
}

// echoStream sends a stream back.
func echoStream(c *cm.Conn) error {
	s := c.Stream()
	if _, err := io.Copy(s, s); err != nil {
		return err
	}
	return s.CloseWrite()
}

// errQuit says that the tests are over.
var errQuit = fmt.Errorf("quit")

// control does what messages say, and answers with what came of it.
func control(c *cm.Conn) error {
	ctx := context.Background()
	for {
		msg, err := c.Recv(ctx)
		if err != nil {
			return nil
		}
		words := strings.Fields(string(msg))
		var answer string
		switch words[0] {
		case "quit":
			return errQuit
		case "vmlink":
			if err := changeLink(words[1:]); err != nil {
				answer = err.Error()
			}
		case "linklocal":
			answer = linkLocal()
		case cutWord, cutAnewWord, removeWord: // begins when the answer is under way
			lasts, err := time.ParseDuration(words[1])
			if err != nil {
				answer = failure + err.Error()
				break
			}
			time.AfterFunc(soon, func() {
				if err := without(words[0], lasts); err != nil {
					fmt.Println(err) // the test finds nobody
				}
			})
		case startWord, waitWord, killWord:
			if answer, err = running.do(words); err != nil {
				answer = failure + err.Error()
			}
		default:
			answer = fmt.Sprintf("%s%q is not understood", failure, words)
		}
		if err := c.Send(ctx, []byte(answer)); err != nil {
			return err
		}
	}
}

// linkLocal waits until this host's end of the link has a link-local address that can be used,
// and returns it.
func linkLocal() string {
	const (
		linkScope = 0x20
		tentative = 0x40 // flag of one of which nobody knows yet whether it is free
	)
	for end := time.Now().Add(limit / 2); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		table, err := os.ReadFile("/proc/net/if_inet6")
		if err != nil {
			return err.Error()
		}
		for line := range strings.Lines(string(table)) {
			var hex, name string
			var index, prefix, scope, flags int
			n, _ := fmt.Sscanf(line, "%s %x %x %x %x %s", &hex, &index, &prefix, &scope, &flags, &name)
			if n < 6 || name != "eth0" || scope != linkScope || flags&tentative != 0 {
				continue
			}
			var ip net.IP
			if _, err := fmt.Sscanf(hex, "%x", (*[]byte)(&ip)); err != nil {
				return err.Error()
			}
			return ip.String()
		}
	}
	return "none"
}

package perf

import (
	"encoding/json"
	"io"
	"net"
	"testing"
	"time"
)

// ShortTimes makes the limits for answers and probes short, for a test outside of the package.
func ShortTimes(t *testing.T, answer, probe time.Duration) {
	usualAnswer, usualProbe := answerTime, probeTime
	answerTime, probeTime = answer, probe
	t.Cleanup(func() { answerTime, probeTime = usualAnswer, usualProbe })
}

// SilentServer starts a server that accepts connections and then says nothing. With a secret it proves
// that first, and with devices it also lists them. It returns its port.
func SilentServer(t *testing.T, secret []byte, rails ...Rail) (port int) {
	l := listen(t)
	end := t.Context().Done()
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				conn := conn
				if secret != nil {
					var err error
					if conn, err = answer(conn, secret); err != nil {
						return
					}
				}
				b, err := readFrame(conn, func() int { return maxFrame })
				var m message
				if err == nil && json.Unmarshal(b, &m) == nil && m.Kind == kindInventory && rails != nil {
					b, _ := json.Marshal(message{Kind: kindRails, Rails: rails})
					conn.Write(framed(string(b)))
				}
				go io.Copy(io.Discard, conn)
				<-end
			}()
		}
	}()
	return l.Addr().(*net.TCPAddr).Port
}

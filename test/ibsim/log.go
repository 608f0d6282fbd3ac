package ibsim

import (
	"bytes"
	"sync"
)

// lockedLog keeps what a program writes, and says when a text has come.
type lockedLog struct {
	want  string
	found chan struct{} // closed when want has come

	mu sync.Mutex
	b  bytes.Buffer // guarded by mu
}

// newLog returns a log that waits for a text.
func newLog(want string) *lockedLog { return &lockedLog{want: want, found: make(chan struct{})} }

// Write implements io.Writer.
func (l *lockedLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	had := bytes.Contains(l.b.Bytes(), []byte(l.want))
	l.b.Write(p)
	if !had && bytes.Contains(l.b.Bytes(), []byte(l.want)) {
		close(l.found)
	}
	return len(p), nil
}

// String returns everything so far.
func (l *lockedLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

package perf

import (
	"errors"
	"testing"
	"time"

	"github.com/goverbs/goverbs/uverbs"
)

// TestPlaced: a message whose first bytes come after its last one is right, and one that stays wrong
// is not.
func TestPlaced(t *testing.T) {
	buf, err := uverbs.AllocBuffer(4096, uverbs.BufferOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer buf.Close()
	e := &End{hold: make([]byte, 100)}
	got := buf.Bytes()[:100]
	var wrong *DataError
	if err := e.placed(got); !errors.As(err, &wrong) {
		t.Fatalf("a message of zeros: %v", err)
	}
	go func() {
		time.Sleep(10 * time.Millisecond)
		pattern(got, 0)
	}()
	if err := e.placed(got); err != nil {
		t.Errorf("a message that is placed late: %v", err)
	}
}

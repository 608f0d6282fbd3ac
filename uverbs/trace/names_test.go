package trace_test

import (
	"encoding/binary"
	"strings"
	"testing"

	"github.com/goverbs/goverbs/cm/rdmacm"
	"github.com/goverbs/goverbs/uverbs/trace"
)

// TestCMEvents: events of the connection manager have the names that package cm gives them.
func TestCMEvents(t *testing.T) {
	for typ := range rdmacm.EventType(25) {
		request := binary.LittleEndian.AppendUint32(nil, 12)             // RDMA_USER_CM_CMD_GET_EVENT
		request = append(request, 8, 0, 0x30, 1, 0, 0, 0, 0, 0, 0, 0, 0) // the sizes of request and answer, and the address of it
		response := make([]byte, 304)                                    // struct rdma_ucm_event_resp
		binary.LittleEndian.PutUint32(response[12:], uint32(typ))        // event
		c := &trace.Call{File: "rdma_cm", Call: trace.CallWrite, Open: 1, Request: request, Response: response}
		if text := trace.NewDecoder().Decode(c).Text(); !strings.Contains(text, "event "+strings.TrimPrefix(typ.String(), "event ")) {
			t.Errorf("event %d is %s in package cm: %s", typ, typ, text)
		}
	}
}

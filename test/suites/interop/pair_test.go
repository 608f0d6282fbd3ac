package interop

import "testing"

func TestPerIteration(t *testing.T) {
	out := "8192000 bytes in 0.21 seconds = 312.05 Mbit/sec\n1000 iters in 0.21 seconds = 210.02 usec/iter\n"
	if got := perIteration(out); got != 210.02 {
		t.Errorf("time is %v, want 210.02", got)
	}
	if got := perIteration("Failed status"); got != 0 {
		t.Errorf("time is %v without any, want 0", got)
	}
}

func TestListening(t *testing.T) {
	table := `  sl  local_address rem_address   st tx_queue rx_queue
   0: 00000000:4E21 00000000:0000 0A 00000000:00000000
   1: 0100007F:4E22 0100007F:1234 01 00000000:00000000
`
	if !listening(table, 0x4e21) {
		t.Error("the listening port is not seen")
	}
	if listening(table, 0x4e22) || listening(table, 0x1234) {
		t.Error("a connection is taken for a listener")
	}
}

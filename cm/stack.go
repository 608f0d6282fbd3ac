package cm

// A goroutine begins with a stack of 2 KiB as a rule. To grow it, the runtime copies it and corrects
// the pointers of each call on it, which takes about 1,500 instructions for a call. So a method that
// needs more grows the stack once, while there are few calls on it, and not step by step. The room
// is not used, and so it is not cleared.

// growStack16K makes the stack of the goroutine large enough for making a connection.
//
//go:noinline
func growStack16K(i int) byte {
	if i == 0 {
		return 0
	}
	var room [8 << 10]byte
	return room[i]
}

// growStack4K makes the stack large enough for waiting in the netpoller, and for a command.
//
//go:noinline
func growStack4K(i int) byte {
	if i == 0 {
		return 0
	}
	var room [3 << 9]byte
	return room[i]
}

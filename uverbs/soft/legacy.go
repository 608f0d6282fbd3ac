package soft

import (
	"syscall"

	"github.com/goverbs/goverbs/uverbs/internal/abi"
	"github.com/goverbs/goverbs/uverbs/internal/kernel"
)

// legacy describes a command of the write() interface.
type legacy struct {
	number uint32 // with IB_USER_VERBS_CMD_FLAG_EXTENDED for an extended one
	req    int    // the smallest core struct of the request; not checked for an extended one
	resp   int    // the smallest core struct of the response
	udata  bool   // there is a driver's part
	run    func(*call) syscall.Errno
}

// answers reports whether the command has a response. Its request then starts with the address of
// it, unless it is an extended one.
func (l *legacy) answers() bool { return l.resp > 0 }

const extended = abi.IB_USER_VERBS_CMD_FLAG_EXTENDED

// legacyOf returns the legacy command with a number, or an errno if the device does not have it.
func legacyOf(number uint32) (*legacy, syscall.Errno) {
	if number&^(extended|abi.IB_USER_VERBS_CMD_COMMAND_MASK) != 0 {
		return nil, syscall.EINVAL
	}
	if l := legacyCommands[number]; l != nil {
		return l, 0
	}
	return nil, syscall.EOPNOTSUPP
}

// invokeWrite is method INVOKE_WRITE.
func invokeWrite(k *call) syscall.Errno {
	c, _ := k.cmd.Legacy()
	number, errno := k.constant(abi.UVERBS_ATTR_WRITE_CMD, 1<<32-1)
	if errno != 0 {
		return errno
	}
	l, errno := legacyOf(uint32(number))
	if errno != 0 {
		return errno
	}
	k.legacy, k.out, k.drvIn, k.drvOut = l, c.Out, c.DrvIn, c.DrvOut
	k.in = k.bytes(abi.UVERBS_ATTR_CORE_IN)
	if number&extended == 0 && (len(k.in) < l.req || len(k.out) < l.resp) {
		return syscall.ENOSPC
	}
	return l.run(k)
}

// write is a legacy command that was issued with write().
func (k *call) write(c *kernel.Legacy) syscall.Errno {
	l, errno := legacyOf(c.Number)
	if errno != 0 {
		return errno
	}
	word := 4
	if c.Number&extended != 0 {
		word = 8
	}
	for _, part := range [][]byte{c.In, c.Out, c.DrvIn, c.DrvOut} {
		if len(part)%word != 0 {
			return syscall.EINVAL
		}
	}
	k.legacy, k.in, k.out = l, c.In, c.Out
	switch {
	case l.udata || c.Number&extended != 0:
		k.drvIn, k.drvOut = c.DrvIn, c.DrvOut
	case len(c.DrvIn) > 0 && !isZero(c.DrvIn): // it is taken for a part of the core struct
		return syscall.EOPNOTSUPP
	}
	if c.Number&extended == 0 && (len(k.in) < l.req || len(k.out) < l.resp) {
		return syscall.ENOSPC
	}
	return l.run(k)
}

// request reads the core struct of the request. A shorter one is completed with zeros, a longer one
// must end in zeros. The address of the response is left out, since it means nothing here.
func (k *call) request(b []byte) syscall.Errno {
	n := 0
	if k.legacy.answers() && k.legacy.number&extended == 0 {
		n = 8
	}
	if len(k.in) < n {
		return syscall.ENOSPC
	}
	copy(b[n:], k.in[n:])
	if len(k.in) > len(b) && !isZero(k.in[len(b):]) {
		return syscall.EOPNOTSUPP
	}
	return 0
}

// respond writes the core struct of the response, as much of it as there is room for, and zeroes
// what remains of the room.
func (k *call) respond(resp []byte) syscall.Errno {
	clear(k.out[copy(k.out, resp):])
	return 0
}

// responseLength is how much of a response there is room for.
func responseLength[T any](k *call, _ *T) uint32 {
	var t T
	return uint32(min(len(k.out), len(kernel.Bytes(&t))))
}

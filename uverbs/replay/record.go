//go:build unix

package replay

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"syscall"

	"github.com/goverbs/goverbs/netlinkrdma"
	"github.com/goverbs/goverbs/uverbs/internal/abi"
	"github.com/goverbs/goverbs/uverbs/internal/kernel"
	"github.com/goverbs/goverbs/uverbs/trace"
)

// record has the calls to one open character device.
type record struct {
	device   string
	driver   uint32
	linux    [2]int
	ioctls   bool // at least one command went by ioctl
	commands []*command
	maps     []*command
}

// command is a recorded call.
type command struct {
	call *trace.Call
	line int
	kind kind
	used bool
}

// kind is what a command does, whatever the way by which it goes.
type kind struct {
	legacy         bool
	number         uint32 // of a legacy command
	object, method uint16 // of another
}

// String names a recorded command in an error.
func (c *command) String() string {
	return fmt.Sprintf("%s (line %d of the record)", trace.NewDecoder().Decode(c.call).Verb, c.line)
}

// readRecord reads the calls of a record to the device with a name, or to the one that got most commands.
func readRecord(r io.Reader, device string) (*record, error) {
	rd, err := trace.NewReader(r)
	if err != nil {
		return nil, err
	}
	opens := map[int]*record{}
	var all []*record // in the order in which they were opened
	for line := 2; ; line++ {
		c, err := rd.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		if c.Call == trace.CallOpen && c.Device != "" && opens[c.Open] == nil {
			opens[c.Open] = &record{device: c.Device, driver: c.Driver, linux: linuxVersion(rd.Header.Kernel)}
			all = append(all, opens[c.Open])
		}
		if o := opens[c.Open]; o != nil {
			o.add(&command{call: c, line: line})
		}
	}
	return choose(all, device)
}

// choose returns the open file of a device that got most commands.
func choose(all []*record, device string) (*record, error) {
	var best *record
	var names []string
	for _, r := range all {
		if !slices.Contains(names, r.device) {
			names = append(names, r.device)
		}
		if (device == "" || r.device == device) && (best == nil || len(r.commands) > len(best.commands)) {
			best = r
		}
	}
	switch {
	case len(all) == 0:
		return nil, errors.New("the record has no open device")
	case best == nil:
		return nil, fmt.Errorf("the device is %q, the record has %s", device, strings.Join(names, ", "))
	case len(best.commands) == 0:
		return nil, fmt.Errorf("the record has no command for %s", best.device)
	case drivers[netlinkrdma.DriverID(best.driver)] == 0:
		return nil, fmt.Errorf("the driver of %s is %s, allowed: rxe, mlx5, siw", best.device, best.driverName())
	}
	return best, nil
}

// drivers has the version of the private data of each driver that can be replayed.
var drivers = map[netlinkrdma.DriverID]uint64{netlinkrdma.DriverRXE: 2, netlinkrdma.DriverSIW: 1, netlinkrdma.DriverMLX5: 1}

func (r *record) driverName() string { return netlinkrdma.DriverID(r.driver).String() }

// linuxVersion returns the first two numbers of a kernel's release.
func linuxVersion(release string) (v [2]int) {
	fmt.Sscanf(release, "%d.%d", &v[0], &v[1])
	return v
}

// add adds a call, if it is one that is replayed.
func (r *record) add(c *command) {
	switch call := c.call; {
	case call.Unfinished || call.Lost != "":
	case call.Call == trace.CallMmap:
		r.maps = append(r.maps, c)
	case call.Call == trace.CallIoctl && call.Command == 0:
		r.ioctls = r.ioctls || call.Errno != "ENOTTY"
		c.kind = kind{object: call.Object, method: call.Method}
		if a := attr(call, abi.UVERBS_ATTR_WRITE_CMD); c.kind == (kind{object: abi.UVERBS_OBJECT_DEVICE, method: abi.UVERBS_METHOD_INVOKE_WRITE}) && a != nil {
			c.kind = kind{legacy: true, number: binary.LittleEndian.Uint32(a.Data[:])}
		}
		r.commands = append(r.commands, c)
	case call.Call == trace.CallWrite && len(call.Request) >= 8:
		c.kind = kind{legacy: true, number: binary.LittleEndian.Uint32(call.Request)}
		r.commands = append(r.commands, c)
	}
}

// attr returns an attribute of a recorded call, or nil.
func attr(c *trace.Call, id uint16) *trace.Attr {
	if i := slices.IndexFunc(c.Attrs, func(a *trace.Attr) bool { return a.ID == id }); i >= 0 {
		return c.Attrs[i]
	}
	return nil
}

// repeated reports whether a command may come any number of times: it comes with each message, or asks what the
// device and its ports are.
func (k kind) repeated() bool {
	if !k.legacy {
		return k.object == abi.UVERBS_OBJECT_DEVICE && slices.Contains(
			[]uint16{abi.UVERBS_METHOD_QUERY_PORT, abi.UVERBS_METHOD_QUERY_GID_TABLE, abi.UVERBS_METHOD_QUERY_GID_ENTRY}, k.method)
	}
	switch k.number {
	case abi.IB_USER_VERBS_CMD_POST_SEND, abi.IB_USER_VERBS_CMD_POST_RECV, abi.IB_USER_VERBS_CMD_POST_SRQ_RECV, abi.IB_USER_VERBS_CMD_REQ_NOTIFY_CQ,
		abi.IB_USER_VERBS_CMD_QUERY_DEVICE, abi.IB_USER_VERBS_CMD_QUERY_PORT,
		abi.IB_USER_VERBS_CMD_FLAG_EXTENDED | abi.IB_USER_VERBS_EX_CMD_QUERY_DEVICE:
		return true
	}
	return false
}

// kindOf returns the kind of a command of the library.
func kindOf(cmd *kernel.Command) kind {
	if l, ok := cmd.Legacy(); ok {
		return kind{legacy: true, number: l.Number}
	}
	return kind{object: cmd.Object, method: cmd.Method}
}

// find returns the recorded command that answers a command, and how they differ: the first equal one among those
// that failed and the first that did not. It returns nil if there is none.
func (r *record) find(cmd *kernel.Command, mayDiffer []string) (found *command, diff string) {
	k := kindOf(cmd)
	for _, c := range r.commands {
		if c.kind != k || c.used && !k.repeated() {
			continue
		}
		diff := difference(cmd, c.call, mayDiffer)
		switch {
		case diff == "":
			return c, ""
		case c.call.Errno != "": // it may have been an attempt of what the library does not try
		case !k.repeated():
			return c, diff
		case found == nil:
			found = c
		}
	}
	if found != nil {
		diff = difference(cmd, found.call, mayDiffer)
	}
	return found, diff
}

// writtenForm returns the command of the write interface that does the same as a method, or the command itself. Where
// the library can write(), it deregisters memory that way.
func writtenForm(cmd *kernel.Command) *kernel.Command {
	if cmd.Object != abi.UVERBS_OBJECT_MR || cmd.Method != abi.UVERBS_METHOD_MR_DESTROY {
		return cmd
	}
	c := kernel.NewCommand(abi.UVERBS_OBJECT_DEVICE, abi.UVERBS_METHOD_INVOKE_WRITE)
	c.Add(abi.UVERBS_ATTR_CORE_IN).SetIn(kernel.Bytes(&abi.DeregMR{MRHandle: uint32(cmd.Attr(abi.UVERBS_ATTR_DESTROY_MR_HANDLE).Data)}))
	c.Add(abi.UVERBS_ATTR_WRITE_CMD).SetUint(abi.IB_USER_VERBS_CMD_DEREG_MR, 8)
	return c
}

// answer puts the recorded answer into a command.
func (c *command) answer(cmd *kernel.Command) syscall.Errno {
	if c.call.Errno != "" {
		return errnoOf(c.call.Errno)
	}
	if c.call.Call == trace.CallWrite {
		c.answerWritten(cmd)
	} else {
		for i := range cmd.Attrs() {
			a := &cmd.Attrs()[i]
			from := attr(c.call, a.ID)
			switch {
			case from == nil:
			case from.New != nil:
				a.Data = binary.LittleEndian.Uint64(from.New[:])
			case a.Out != nil:
				copy(a.Out, from.Output())
			}
		}
	}
	if strings.HasPrefix(trace.NewDecoder().Decode(c.call).Verb, "destroy ") { // no event was delivered
		for _, a := range cmd.Attrs() {
			clear(a.Out)
		}
	}
	return 0
}

// answerWritten puts the answer to a write into a command.
func (c *command) answerWritten(cmd *kernel.Command) {
	l, _ := cmd.Legacy()
	resp := c.call.Response
	core := len(l.Out)
	if c.kind.number&abi.IB_USER_VERBS_CMD_FLAG_EXTENDED != 0 {
		core = 8 * int(binary.LittleEndian.Uint16(c.call.Request[6:]))
	}
	core = min(core, len(resp))
	copy(l.Out, resp[:core])
	copy(l.DrvOut, resp[core:])
}

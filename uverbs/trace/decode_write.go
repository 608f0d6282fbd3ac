package trace

import (
	"encoding/binary"
	"fmt"
	"strings"
)

// verbsWrite describes a command of the write interface: struct ib_uverbs_cmd_hdr, struct
// ib_uverbs_ex_cmd_hdr for an extended command, and the structs of the core and the driver.
func (f *openFile) verbsWrite(e *Event) {
	c := e.Call
	if len(c.Request) < 8 {
		e.Verb, e.Unknown = "write", 1
		e.rest(c.Request, false, false)
		return
	}
	number := binary.LittleEndian.Uint32(c.Request)
	name, extended := commandName(number)
	body, resp := c.Request[8:], []byte(c.Response)
	if !extended {
		f.command(e, name, number, body, resp, nil, nil)
		return
	}
	if len(body) < 16 {
		e.Verb, e.Unknown = "write", 1
		e.rest(c.Request, false, false)
		return
	}
	core := 8 * int(binary.LittleEndian.Uint16(c.Request[4:]))
	out := 8 * int(binary.LittleEndian.Uint16(c.Request[6:]))
	body = body[16:]
	core, out = min(core, len(body)), min(out, len(resp))
	f.command(e, name, number, body[:core], resp[:out], body[core:], resp[out:])
}

// commandName returns the name of a command of the write interface, "" if it is not in the headers.
func commandName(number uint32) (name string, extended bool) {
	in := "ib_uverbs_write_cmds"
	extended = number&0x80000000 != 0
	if extended {
		in = "IB_USER_VERBS_EX_CMD_QUERY_DEVICE"
	}
	name, _ = abi().enums[in].name(uint64(number & 0xff))
	if name == "" && extended {
		name, _ = abi().enums["ib_uverbs_write_cmds"].name(uint64(number & 0xff))
	}
	return name, extended
}

// command describes a command by the bytes of its core and driver structs. Without drvIn and drvOut,
// what the driver adds stands behind the core struct.
func (f *openFile) command(e *Event, name string, number uint32, in, out, drvIn, drvOut []byte) {
	if name == "" {
		e.Verb, e.Unknown = fmt.Sprintf("command %#x", number), 1
		e.rest(in, false, false)
		e.rest(out, true, false)
		e.rest(drvIn, false, true)
		e.rest(drvOut, true, true)
		return
	}
	e.Method, e.Verb = name, verbOf(name)
	inStruct, outStruct := structsOf(name)
	if !strings.Contains(name, "_EX_CMD_") && inStruct != "" {
		if n := abi().structs[inStruct].size; len(in) > n && len(drvIn) == 0 && !strings.Contains(name, "_POST_") {
			in, drvIn = in[:n], in[n:]
		}
		if s := abi().structs[outStruct]; s != nil && len(out) > s.size && len(drvOut) == 0 {
			out, drvOut = out[:s.size], out[s.size:]
		}
	}
	f.structs(e, inStruct, in, false)
	driver := specified().drivers[driverCommand{f.driver, plain(name)}]
	f.driverStruct(e, driver[0], drvIn, false)
	if e.Call.Errno == "" && !e.Call.Unfinished {
		f.structs(e, outStruct, out, true)
		f.driverStruct(e, driver[1], drvOut, true)
	}
	f.subject(e)
}

// structs adds the struct of a command.
func (f *openFile) structs(e *Event, name string, b []byte, output bool) {
	if len(b) == 0 && name == "" {
		return
	}
	values, rest := f.decodeStruct(name, b, nil)
	if name != "" {
		e.add(Payload{Name: name, ID: -1, Output: output, Values: values})
	}
	e.rest(rest, output, false)
}

// driverStruct adds the struct that a driver has added to a command.
func (f *openFile) driverStruct(e *Event, name string, b []byte, output bool) {
	if len(b) == 0 {
		return
	}
	if name == "mlx5_ib_create_qp" && len(b) == abi().structs["mlx5_ib_create_qp_rss"].size {
		name += "_rss"
	}
	values, rest := f.decodeStruct(name, b, nil)
	if name != "" {
		e.add(Payload{Name: name, ID: -1, Output: output, Driver: true, Values: values})
	}
	e.rest(rest, output, true)
}

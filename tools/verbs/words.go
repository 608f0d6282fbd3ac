package main

import (
	"slices"
	"strconv"
	"strings"

	"github.com/goverbs/goverbs/netlinkrdma"
	"github.com/goverbs/goverbs/tools/internal/objects"
	"github.com/goverbs/goverbs/tools/verbs/internal/command"
	"github.com/goverbs/goverbs/tools/verbs/internal/peertext"
)

// words are arguments that are pairs of a word and its value. After the first error its methods do nothing.
type words struct {
	of  map[string]string
	err error
}

// readWords reads the pairs. Words that end in "?" may be missing.
func readWords(cmd *command.Command, args []string, allowed ...string) *words {
	w := &words{of: map[string]string{}}
	w.err = w.read(cmd, args, allowed)
	return w
}

func (w *words) read(cmd *command.Command, args, allowed []string) error {
	var names []string
	for _, a := range allowed {
		names = append(names, strings.TrimSuffix(a, "?"))
	}
	for len(args) > 0 {
		name := args[0]
		switch {
		case !slices.Contains(names, name):
			return command.Usagef("a word of %s is %s, allowed: %s", cmd.Path(), peertext.Quote(name), strings.Join(names, ", "))
		case w.has(name):
			return command.Usagef("%s is given twice", name)
		case len(args) == 1:
			return command.Usagef("%s has no value; usage: %s", name, cmd.UseLine())
		}
		w.of[name], args = args[1], args[2:]
	}
	for i, a := range allowed {
		if !w.has(names[i]) && !strings.HasSuffix(a, "?") {
			return command.Usagef("%s is missing; usage: %s", names[i], cmd.UseLine())
		}
	}
	return nil
}

// has reports whether a word is given.
func (w *words) has(name string) bool {
	_, ok := w.of[name]
	return ok
}

// try calls a function unless there was an error.
func (w *words) try(f func() error) {
	if w.err == nil {
		w.err = f()
	}
}

// number returns the value of a word that is a number, and 0 for one that is not given.
func (w *words) number(name string) uint32 {
	if w.err != nil || !w.has(name) {
		return 0
	}
	n, err := strconv.ParseUint(w.of[name], 0, 32)
	if err != nil {
		w.err = command.Usagef("%s is %s, allowed: 0 to %d", name, peertext.Quote(w.of[name]), uint32(1<<32-1))
	}
	return uint32(n)
}

// device returns the device with a name.
func (w *words) device(name string) (dev netlinkrdma.Device) {
	w.try(func() (err error) {
		dev, err = kernelDevice(name)
		return err
	})
	return dev
}

// notOfKernel is why the settings of a software device cannot be changed.
const notOfKernel = "the kernel cannot change it; GOVERBS_SOFT makes it, and names it"

// kernelDevice returns the device with a name that the kernel can change.
func kernelDevice(name string) (netlinkrdma.Device, error) {
	dev, err := netlinkrdma.DeviceByName(name)
	return dev, objects.OfKernel(name, notOfKernel, err)
}

// port returns the port that an argument DEV/PORT names; of a device with one port, DEV is enough.
func (w *words) port(arg string) (dev netlinkrdma.Device, port uint32) {
	var name string
	w.try(func() (err error) {
		name, port, err = splitPort(arg)
		return err
	})
	dev = w.device(name)
	w.try(func() error {
		switch {
		case port == 0 && dev.Ports != 1:
			return command.Usagef("the port of %s is missing: it has %d; write %s/1", dev.Name, dev.Ports, dev.Name)
		case port == 0:
			port = 1
		case port > dev.Ports:
			return command.Usagef("the port is %d, allowed: 1 to %d", port, dev.Ports)
		}
		return nil
	})
	return dev, port
}

// chosen returns what the value of a word stands for, and the zero value for a word that is not given.
func chosen[T any](w *words, name string, of map[string]T) (v T) {
	if w.err == nil && w.has(name) {
		v, w.err = choice(name, w.of[name], of)
	}
	return v
}

// choice returns the value that a word stands for.
func choice[T any](name, value string, of map[string]T) (T, error) {
	v, ok := of[value]
	if !ok {
		var all []string
		for k := range of {
			all = append(all, k)
		}
		slices.Sort(all)
		return v, command.Usagef("%s is %s, allowed: %s", name, peertext.Quote(value), strings.Join(all, ", "))
	}
	return v, nil
}

// onOff are the values of a switch.
var onOff = map[string]bool{"on": true, "off": false}

// afterShow returns the arguments without the words that iproute2's rdma has before a device: "show", and "link" or
// "dev".
func afterShow(args []string) []string {
	if len(args) > 0 && (args[0] == "show" || args[0] == "list") {
		args = args[1:]
	}
	if len(args) > 1 && (args[0] == "link" || args[0] == "dev") {
		args = args[1:]
	}
	return args
}

// shows returns a check for a group that shows what there is, which takes "show" and up to max arguments.
func shows(max int) func(*command.Command, []string) error {
	return func(cmd *command.Command, args []string) error {
		if len(args) > 0 && args[0] != "show" && args[0] != "list" {
			return command.UnknownCommand(cmd, args[0], "show")
		}
		return command.Arguments(max)(cmd, afterShow(args))
	}
}

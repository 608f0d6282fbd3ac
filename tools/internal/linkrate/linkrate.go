// Package linkrate reads the rate of a port's link from sysfs, which needs no right to open the device.
package linkrate

import (
	"io/fs"
	"path"
	"strconv"
	"strings"
)

// Read reads a rate such as "100 Gb/sec (4X EDR)" below /sys, and returns it in Gbit/s, with the number of lanes.
func Read(sysfs fs.FS, device string, port uint32) (gbps float64, lanes uint64, ok bool) {
	text, err := fs.ReadFile(sysfs, path.Join("class/infiniband", device, "ports", strconv.FormatUint(uint64(port), 10), "rate"))
	words := strings.Fields(string(text))
	if err != nil || len(words) < 3 || words[1] != "Gb/sec" {
		return 0, 0, false
	}
	speed, err := strconv.ParseFloat(words[0], 64)
	width, _, ok := strings.Cut(strings.TrimPrefix(words[2], "("), "X")
	lanes, lerr := strconv.ParseUint(width, 10, 16)
	return speed, lanes, ok && err == nil && lerr == nil && speed > 0
}

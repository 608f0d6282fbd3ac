package kernel

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"unicode"
)

// traceLevel is set by RDMADEBUG=level=N in the environment: 1 traces commands.
var traceLevel = sync.OnceValue(func() int {
	for _, kv := range strings.Split(os.Getenv("RDMADEBUG"), ",") {
		if v, ok := strings.CutPrefix(kv, "level="); ok {
			level, _ := strconv.Atoi(v)
			return level
		}
	}
	return 0
})

// trace reports a command and its outcome on standard error.
func trace(device string, c *Command, byWrite bool, errno syscall.Errno) {
	if traceLevel() < 1 {
		return
	}
	result := "ok"
	if errno != 0 {
		result = errno.Error()
	}
	device = strings.Map(func(r rune) rune { // the name of a device may be anything
		if unicode.IsPrint(r) {
			return r
		}
		return '?'
	}, device)
	fmt.Fprintf(os.Stderr, "uverbs: %s: %s: %s\n", device, describe(c, byWrite), result)
}

// Package peertext makes text that came from a peer safe to show: a peer that is broken or hostile
// may send control sequences for a terminal, and as much of them as it likes.
package peertext

import (
	"fmt"
	"strconv"
)

// Max is the number of bytes of a text that are shown.
const Max = 256

// Quote returns text as a Go string literal, in which everything that is not printable is escaped.
// Of a text longer than Max bytes it shows the first Max bytes and says how long the text is.
func Quote[T string | []byte](text T) string {
	if len(text) <= Max {
		return strconv.Quote(string(text))
	}
	return fmt.Sprintf("%s... (%d bytes)", strconv.Quote(string(text[:Max])), len(text))
}

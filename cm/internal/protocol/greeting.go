package protocol

import (
	"strings"

	"github.com/goverbs/goverbs/cm/internal/redial"
)

// Private data of the protocol of package cm begins with a mark, a version and a kind. A refusal is a
// greeting with a text; see PROTOCOL.md of package cm.
const (
	cmMark     = "gv"
	cmVersion  = 2
	cmRefusal  = 3
	cmTextAt   = 12
	cmLengthAt = 7
)

// SpeaksCM reports whether private data is of the protocol of package cm.
func SpeaksCM(b []byte) bool { return len(b) >= 4 && string(b[:len(cmMark)]) == cmMark }

// portSpeaks begins the text of the refusals of listeners for other protocols.
const portSpeaks = "this port speaks "

// Refusal returns the private data of the rejection of a request of another protocol, which tells a peer
// that uses this module what the port speaks.
func Refusal(request []byte, speaks string) []byte {
	version := byte(cmVersion)
	if SpeaksCM(request) {
		version = request[len(cmMark)]
	}
	return refusal(version, portSpeaks+speaks)
}

// refusal returns the private data of a rejection with a text.
func refusal(version byte, text string) []byte {
	b := make([]byte, cmTextAt, cmTextAt+len(text))
	copy(b, cmMark)
	b[2], b[3], b[cmLengthAt] = version, cmRefusal, byte(len(text))
	return append(b, text...)
}

// Refused returns the text of the private data of a rejection that a listener of this module has made, and "" for any
// other.
func Refused(b []byte) string {
	if len(b) < cmTextAt || !SpeaksCM(b) || b[3] != cmRefusal || len(b)-cmTextAt < int(b[cmLengthAt]) {
		return ""
	}
	text := string(b[cmTextAt:][:b[cmLengthAt]])
	if !strings.HasPrefix(text, portSpeaks) && !redial.Passes(text) {
		return ""
	}
	return text
}

package uverbs

import "github.com/goverbs/goverbs/uverbs/ib"

// GID is a global identifier; see [ib.GID].
type GID = ib.GID

// ParseGID parses a GID; see [ib.ParseGID].
func ParseGID(s string) (GID, error) { return ib.ParseGID(s) }

// GUID is an EUI-64 identifier; see [ib.GUID].
type GUID = ib.GUID

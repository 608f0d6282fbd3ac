package fault

import "github.com/goverbs/goverbs/uverbs/soft/internal/udp"

// Meta is what a socket says of a received packet besides its bytes.
type Meta = udp.IP

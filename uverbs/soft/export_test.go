package soft

import "github.com/goverbs/goverbs/uverbs/soft/internal/engine"

// NewAlone is New for a device that reaches other devices of the process by its socket only, like one
// of another process.
func NewAlone(o Options) (*Device, error) { return newOn(new(engine.Host), nil, o) }

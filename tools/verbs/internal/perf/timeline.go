package perf

import (
	"time"

	"github.com/goverbs/goverbs/uverbs/ib"
)

// MaxSamples is the maximum number of samples of a time line. When there are more, two become one.
const MaxSamples = 4096

// LeastTimeline is the least time between two samples of a time line.
const LeastTimeline = 10 * time.Millisecond

// Sample is a part of the traffic of a size.
type Sample struct {
	Seconds  float64 `json:"seconds"`        // when it ended, since the beginning of the traffic
	Messages int64   `json:"messages"`       // that were done in it, warm-up included
	Down     bool    `json:"down,omitempty"` // this side's port was not active at its end
}

// sampleEvery samples a count and the state of a port at regular times, until stop is called, which returns the samples.
func sampleEvery(every time.Duration, count func() int64, down func() bool) (stop func() []Sample) {
	over, result := make(chan struct{}), make(chan []Sample, 1)
	go func() {
		var all []Sample
		start, last := time.Now(), int64(0)
		take := func() {
			n := count()
			all = append(all, Sample{Seconds: time.Since(start).Seconds(), Messages: n - last, Down: down()})
			last = n
		}
		join := func(a, b Sample) Sample {
			return Sample{Seconds: b.Seconds, Messages: a.Messages + b.Messages, Down: a.Down || b.Down}
		}
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			select {
			case <-over:
				take()
				// A short rest would be a rate of its own.
				if i := len(all) - 1; i > 1 && all[i].Seconds-all[i-1].Seconds < every.Seconds()/2 {
					all[i-1] = join(all[i-1], all[i])
					all = all[:i]
				}
				result <- all
				return
			case <-tick.C:
				take()
			}
			if len(all) == MaxSamples {
				for i := range MaxSamples / 2 {
					all[i] = join(all[2*i], all[2*i+1])
				}
				all = all[:MaxSamples/2]
				every *= 2
				tick.Reset(every)
			}
		}
	}()
	return func() []Sample {
		close(over)
		return <-result
	}
}

// portDown reports whether the port of an end is known not to be active.
func (e *End) portDown() bool {
	attr, err := e.Dev.Port(e.Port)
	return err == nil && attr.State != ib.PortActive
}

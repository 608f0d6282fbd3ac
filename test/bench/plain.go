package main

import (
	"context"
	"fmt"
	"regexp"
	"runtime"
	"slices"
	"strconv"
)

// Ratios that a program without tuning should reach.
const (
	plainPolling = 1.03
	plainEvents  = 1.15
)

// plainRows are ping-pongs of the example program in the directory plain, beside ibv_rc_pingpong.
func (b *bench) plainRows() []work {
	var all []work
	for _, events := range []bool{false, true} {
		for _, size := range b.sizes {
			if size >= 64 && size <= 64<<10 { // what both are written for
				all = append(all, b.pingpong(size, events))
			}
		}
	}
	return all
}

// pingpong is one size. On a machine with one processor the servers wait for events in any case: two
// programs that poll would share the processor by its scheduler's time slices.
func (b *bench) pingpong(size int, events bool) work {
	options := []string{"-s", strconv.Itoa(size), "-n", strconv.Itoa(b.iterations("lat", size))}
	name, wanted := fmt.Sprintf("plain/size=%d/wait=poll", size), plainPolling
	if events {
		name, wanted = fmt.Sprintf("plain/size=%d/wait=events", size), plainEvents
	}
	client, server := options, options
	if events {
		client = append(client[:len(client):len(client)], "-e")
	}
	if events || runtime.NumCPU() == 1 {
		server = append(server[:len(server):len(server)], "-e")
	}
	return work{
		rows: []Row{row(name, microseconds, wanted)},
		ours: func(ctx context.Context) ([]float64, error) {
			port := b.nextPort()
			address := fmt.Sprintf("%s:%d", serverIP, port)
			return b.exchange(ctx, port, slices.Concat([]string{b.plain}, server, []string{address}), slices.Concat([]string{b.plain}, client, []string{address}))
		},
		theirs: func(ctx context.Context) ([]float64, error) {
			port := b.nextPort()
			line := []string{"ibv_rc_pingpong", "-d", b.device, "-g", strconv.Itoa(b.gid), "-p", strconv.Itoa(port)}
			return b.exchange(ctx, port, slices.Concat(line, server), slices.Concat(line, client, []string{serverIP.String()}))
		},
	}
}

// exchange runs a server and a client, and returns the microseconds per exchange that the client prints.
func (b *bench) exchange(ctx context.Context, port int, server, client []string) ([]float64, error) {
	s, err := start(server, nil)
	if err != nil {
		return nil, err
	}
	defer s.stop()
	if err := s.listening(ctx, port); err != nil {
		return nil, err
	}
	out, err := output(ctx, client)
	if err != nil {
		return nil, err
	}
	v, err := pingpongFigure(string(out))
	return []float64{v}, err
}

// perExchange finds the figure in what plain or ibv_rc_pingpong prints.
var perExchange = regexp.MustCompile(`(?m)([0-9.]+) (?:µs per exchange|usec/iter)$`)

// pingpongFigure returns the microseconds per exchange.
func pingpongFigure(out string) (float64, error) {
	m := perExchange.FindStringSubmatch(out)
	if m == nil {
		return 0, fmt.Errorf("a ping-pong prints no time per exchange: %q", out)
	}
	v, err := strconv.ParseFloat(m[1], 64)
	if err != nil || v <= 0 {
		return 0, fmt.Errorf("a ping-pong prints %q, want a time above 0", m[1])
	}
	return v, nil
}

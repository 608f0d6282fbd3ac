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
	plainPolling   = 1.03
	plainEvents    = 1.15
	plainProcessor = 1.3 // with events
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
//
// With events there is a second row, the processor time per exchange of the client. Polling, a process
// uses its processor all the time.
func (b *bench) pingpong(size int, events bool) work {
	count := b.iterations("lat", size)
	options := []string{"-s", strconv.Itoa(size), "-n", strconv.Itoa(count)}
	rows := []Row{row(fmt.Sprintf("plain/size=%d/wait=poll", size), microseconds, plainPolling)}
	if events {
		name := fmt.Sprintf("plain/size=%d/wait=events", size)
		rows = []Row{row(name, microseconds, plainEvents), row(name+"/processor", microseconds, plainProcessor)}
	}
	play := func(ctx context.Context, port int, server, client []string) ([]float64, error) {
		v, err := b.exchange(ctx, port, server, client, count)
		if err != nil {
			return nil, err
		}
		return v[:len(rows)], nil
	}
	client, server := options, options
	if events {
		client = append(client[:len(client):len(client)], "-e")
	}
	if events || runtime.NumCPU() == 1 {
		server = append(server[:len(server):len(server)], "-e")
	}
	return work{
		rows: rows,
		ours: func(ctx context.Context) ([]float64, error) {
			port := b.nextPort()
			address := fmt.Sprintf("%s:%d", serverIP, port)
			return play(ctx, port, slices.Concat([]string{b.plain}, server, []string{address}), slices.Concat([]string{b.plain}, client, []string{address}))
		},
		theirs: func(ctx context.Context) ([]float64, error) {
			port := b.nextPort()
			line := []string{"ibv_rc_pingpong", "-d", b.device, "-g", strconv.Itoa(b.gid), "-p", strconv.Itoa(port)}
			return play(ctx, port, slices.Concat(line, server), slices.Concat(line, client, []string{serverIP.String()}))
		},
	}
}

// exchange runs a server and a client. It returns the microseconds per exchange that the client prints,
// and those of processor time, user and system, that the client has used from its start to its end.
func (b *bench) exchange(ctx context.Context, port int, server, client []string, count int) ([]float64, error) {
	s, err := start(server, nil)
	if err != nil {
		return nil, err
	}
	defer s.stop()
	if err := s.listening(ctx, port); err != nil {
		return nil, err
	}
	out, state, err := finish(ctx, client)
	if err != nil {
		return nil, err
	}
	v, err := pingpongFigure(string(out))
	used := state.UserTime() + state.SystemTime()
	return []float64{v, float64(used.Nanoseconds()) / 1e3 / float64(count)}, err
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

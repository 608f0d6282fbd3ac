package vfiouser

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"
)

// Card is a device at a socket.
type Card struct {
	Name   string  // Name begins the card's errors.
	Socket string  // Socket is as for [Accept].
	Server *Server // Server speaks with the client.
	Device Device  // Device is what it serves.
}

// serve answers the client at the socket.
func (c Card) serve() error {
	conn, err := Accept(c.Socket)
	if err == nil {
		defer conn.Close()
		err = c.Server.Serve(conn, c.Device)
	}
	if err != nil {
		return fmt.Errorf("%s: %s: %w", c.Name, c.Socket, err)
	}
	return nil
}

// ServeAll serves cards until the clients of all are gone, or until the program is told to end by SIGTERM or SIGINT,
// both of which are no error. It calls tick every second.
func ServeAll(cards []Card, tick func()) (err error) {
	errs := make(chan error, len(cards))
	for _, c := range cards {
		go func() { errs <- c.serve() }()
	}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT)
	defer signal.Stop(stop)
	second := time.NewTicker(time.Second)
	defer second.Stop()
	for gone := 0; gone < len(cards); {
		select {
		case e := <-errs:
			err = errors.Join(err, e)
			gone++
		case <-second.C:
			tick()
		case <-stop:
			return err
		}
	}
	return err
}

// WriteReport writes a report as JSON to a file, unless its name is "".
func WriteReport(file string, report any) error {
	if file == "" {
		return nil
	}
	b, err := json.MarshalIndent(report, "", "\t")
	if err != nil {
		return err
	}
	return os.WriteFile(file, append(b, '\n'), 0o644)
}

// Exit ends a program that has served cards. The status is 1 if a driver did what it must not, and 2 after an error
// of the program itself, which is printed. To have asked for help is no error.
func Exit(violations uint64, err error) {
	switch {
	case errors.Is(err, flag.ErrHelp):
	case err != nil:
		fmt.Fprintf(os.Stderr, "%s: %v\n", filepath.Base(os.Args[0]), err)
		os.Exit(2)
	case violations > 0:
		os.Exit(1)
	}
	os.Exit(0)
}

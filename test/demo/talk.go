package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/goverbs/goverbs/cm"
)

// Sizes in bytes of a message of a Conn, and of one Write to a Stream.
const (
	messageSize = 4096
	streamSize  = 64 << 10
)

// service is the part of the server that package cm connects.
type service struct{ listener *cm.Listener }

// listen listens on a port of an address.
func listen(ctx context.Context, addr string) (*service, error) {
	l, err := cm.Listen(ctx, net.JoinHostPort(addr, "0"), cm.ListenOptions{})
	return &service{l}, err
}

// serve accepts a connection for messages and one for a stream, and answers both with the number of bytes
// that have arrived.
func (s *service) serve(ctx context.Context) error {
	c, err := s.listener.Accept(ctx)
	if err != nil {
		return err
	}
	var total uint64
	for {
		m, err := c.Recv(ctx)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		total += uint64(len(m))
	}
	if err := c.Send(ctx, binary.BigEndian.AppendUint64(nil, total)); err != nil {
		return err
	}
	if err := c.Close(); err != nil {
		return err
	}
	stream, err := s.listener.Streams().Accept()
	if err != nil {
		return err
	}
	n, err := io.Copy(io.Discard, stream)
	if err != nil {
		return err
	}
	if _, err := stream.Write(binary.BigEndian.AppendUint64(nil, uint64(n))); err != nil {
		return err
	}
	return errors.Join(stream.Close(), s.listener.Close())
}

// talk sends messages and a stream to the server.
func talk(ctx context.Context, address string, per time.Duration) ([]row, error) {
	messages := row{What: "messages, cm.Conn", Size: messageSize}
	c, err := cm.Dial(ctx, address, cm.DialOptions{})
	if err != nil {
		return nil, err
	}
	start := time.Now()
	for data := make([]byte, messageSize); time.Since(start) < per; messages.Count++ {
		if err := c.Send(ctx, data); err != nil {
			return nil, err
		}
	}
	if err := c.CloseWrite(ctx); err != nil {
		return nil, err
	}
	answer, err := c.Recv(ctx)
	if err != nil {
		return nil, err
	}
	messages.Time = time.Since(start)
	if err := errors.Join(messages.check(answer), c.Close()); err != nil {
		return nil, err
	}

	stream := row{What: "stream, cm.Stream", Size: streamSize}
	s, err := cm.DialStream(ctx, address, cm.DialOptions{})
	if err != nil {
		return nil, err
	}
	start = time.Now()
	for data := make([]byte, streamSize); time.Since(start) < per; stream.Count++ {
		if _, err := s.Write(data); err != nil {
			return nil, err
		}
	}
	if err := s.CloseWrite(); err != nil {
		return nil, err
	}
	if answer, err = io.ReadAll(s); err != nil {
		return nil, err
	}
	stream.Time = time.Since(start)
	return []row{messages, stream}, errors.Join(stream.check(answer), s.Close())
}

// check compares the number of bytes that the server has received with the number that was sent.
func (r *row) check(answer []byte) error {
	if want := uint64(r.Count * r.Size); len(answer) != 8 || binary.BigEndian.Uint64(answer) != want {
		return fmt.Errorf("%s: %d bytes were sent, and the server counted %x", r.What, want, answer)
	}
	return nil
}

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"

	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/uverbs"
)

// work borrows a page, writes a text into it by RDMA, and tells the broker.
func work(ctx context.Context, conn *net.UnixConn, text []byte) (err error) {
	l, device, memory, err := borrow(conn)
	if err != nil {
		return err
	}
	defer device.Close()
	defer memory.Close()
	dev, err := uverbs.ImportDevice(device)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dev.CloseAll()) }() // the broker's objects stay
	pd, err := dev.ImportPD(l.PD)
	if err != nil {
		return err
	}
	all, err := unix.Mmap(int(memory.Fd()), 0, pages*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	lent, err := pd.ImportMR(l.MR, uverbs.ImportMROptions{Access: uverbs.AccessLocalWrite | uverbs.AccessRemoteWrite, Memory: all})
	if err != nil {
		return err
	}
	if err := write(ctx, pd, lent, l.Offset, text); err != nil {
		return err
	}
	fmt.Printf("wrote %q\n", all[l.Offset:][:len(text)])
	if err := dev.CloseAll(); err != nil { // before the page is somebody else's
		return err
	}
	_, err = conn.Write([]byte{1})
	return err
}

// borrow takes a message with the descriptors of the device and of the memory.
func borrow(conn *net.UnixConn) (l loan, device, memory *os.File, err error) {
	message, rights := make([]byte, 256), make([]byte, unix.CmsgSpace(2*4))
	n, nr, _, _, err := conn.ReadMsgUnix(message, rights)
	if errors.Is(err, io.EOF) {
		err = errors.New("the broker has no page for this worker")
	}
	if err != nil {
		return l, nil, nil, err
	}
	var files []*os.File
	defer func() {
		for _, f := range files {
			if err != nil {
				f.Close()
			}
		}
	}()
	control, err := unix.ParseSocketControlMessage(rights[:nr])
	for i := range control {
		fds, _ := unix.ParseUnixRights(&control[i]) // which leaves it empty if there are none
		for _, fd := range fds {
			files = append(files, os.NewFile(uintptr(fd), "from the broker"))
		}
	}
	switch {
	case err != nil:
	case len(files) != 2:
		err = fmt.Errorf("the broker has sent %d descriptors, want 2", len(files))
	default:
		err = json.Unmarshal(message[:n], &l)
	}
	if err == nil && (l.Offset < 0 || l.Offset > (pages-1)*page) {
		err = fmt.Errorf("the broker's offset is %d, allowed: 0 to %d", l.Offset, (pages-1)*page)
	}
	if err != nil {
		return l, nil, nil, err
	}
	return l, files[0], files[1], nil
}

// write writes to borrowed memory, from one queue pair of this process to another.
func write(ctx context.Context, pd *uverbs.PD, lent *uverbs.MR, offset int, text []byte) error {
	buf, err := uverbs.AllocBuffer(page, uverbs.BufferOptions{})
	if err != nil {
		return err
	}
	mr, err := pd.RegMR(buf, uverbs.MROptions{Access: uverbs.AccessLocalWrite})
	if err != nil {
		return err
	}
	cq, err := pd.Device().CreateCQ(uverbs.CQOptions{Events: true})
	if err != nil {
		return err
	}
	var qps [2]*uverbs.QP
	for i := range qps {
		o := uverbs.QPOptions{SendCQ: cq, RecvCQ: cq, Path: uverbs.PathOptions{Access: uverbs.AccessRemoteWrite}}
		if qps[i], err = pd.CreateQP(o); err != nil {
			return err
		}
	}
	if err := uverbs.ConnectPair(ctx, qps[0], qps[1]); err != nil {
		return err
	}
	wr := uverbs.SendWR{Opcode: uverbs.WRRDMAWrite, Flags: uverbs.SendSignaled, SGL: []uverbs.SGE{mr.SGE(0, copy(buf.Bytes(), text))}}
	wr.RemoteAddr, wr.RKey = lent.Addr()+uint64(offset), lent.RKey()
	if err := qps[0].PostSend(wr); err != nil {
		return err
	}
	var wc [1]uverbs.WC
	if _, err := cq.Wait(ctx, wc[:]); err != nil {
		return err
	}
	return qps[0].Err(&wc[0])
}

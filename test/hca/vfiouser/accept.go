package vfiouser

import (
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
)

// Accept waits for a client at a socket of the unix domain: the path of one to make, or fd:N for one that is
// listened to already, with which the program was started.
func Accept(socket string) (*net.UnixConn, error) {
	if number, ok := strings.CutPrefix(socket, "fd:"); ok {
		return acceptFD(socket, number)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		return nil, err
	}
	defer l.Close()
	return l.AcceptUnix()
}

func acceptFD(socket, number string) (*net.UnixConn, error) {
	fd, err := strconv.ParseUint(number, 10, 31)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), socket)
	if f == nil {
		return nil, fmt.Errorf("%s: no such descriptor", socket)
	}
	defer f.Close()
	l, err := net.FileListener(f)
	if err != nil {
		return nil, err
	}
	defer l.Close()
	u, ok := l.(*net.UnixListener)
	if !ok {
		return nil, fmt.Errorf("%s is no socket of the unix domain", socket)
	}
	return u.AcceptUnix()
}

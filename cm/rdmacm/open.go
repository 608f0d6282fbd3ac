package rdmacm

import (
	"errors"
	"fmt"
	"runtime"
	"syscall"

	"github.com/goverbs/goverbs/netlinkrdma"
	"github.com/goverbs/goverbs/uverbs"
)

// devicePath is the usual path of the connection manager's device.
var devicePath = netlinkrdma.CharDev{Name: "rdma_cm"}.Path()

// noRDMA is the error of a kernel that has no socket for RDMA, or no device for the connection manager.
type noRDMA struct {
	error
	text string
}

// Error is short, because every log line of a program that falls back to TCP has it.
func (e *noRDMA) Error() string { return e.text }

// Is reports whether target is [errors.ErrUnsupported].
func (*noRDMA) Is(target error) bool { return target == errors.ErrUnsupported }

// Unwrap returns the error of the kernel.
func (e *noRDMA) Unwrap() error { return e.error }

// findDevice asks the kernel for the connection manager's device.
func findDevice() (netlinkrdma.CharDev, error) {
	dev, err := netlinkrdma.CMDev()
	switch {
	case err != nil && runtime.GOOS != "linux":
		return dev, err
	case err != nil && netlinkrdma.Sandbox() != "":
		return dev, &uverbs.FeatureError{Feature: "the connection manager (" + devicePath + ")", Sandbox: netlinkrdma.Sandbox(), Err: err}
	case errors.Is(err, syscall.EPROTONOSUPPORT):
		return dev, &noRDMA{err, "the kernel has no RDMA (modprobe rdma_ucm, and for software RoCE rdma_rxe)"}
	case errors.Is(err, errors.ErrUnsupported):
		if hint := onlyEFA(); hint != "" {
			return dev, &noRDMA{err, hint}
		}
		return dev, fmt.Errorf("%s: module rdma_ucm is not loaded (modprobe rdma_ucm): %w", devicePath, err)
	case err != nil:
		return dev, fmt.Errorf("%s: %w", devicePath, err)
	case dev.ABI < minABI || dev.ABI > maxABI:
		return dev, fmt.Errorf("%s: the kernel's connection manager has ABI version %d, this library supports %d to %d: %w",
			dev.Path(), dev.ABI, minABI, maxABI, errors.ErrUnsupported)
	}
	return dev, nil
}

// openDevice opens the connection manager's device.
func openDevice() (*file, error) {
	dev, err := findDevice()
	if err != nil {
		return nil, withSoft(err)
	}
	return open(dev, dev.Path())
}

// open opens the connection manager's device at a path.
func open(dev netlinkrdma.CharDev, path string) (f *file, err error) {
	k := startCredThread()
	k.run(func() { f, err = openHere(dev, path) })
	if err != nil {
		k.stop()
		return nil, err
	}
	f.thread = k
	return f, nil
}

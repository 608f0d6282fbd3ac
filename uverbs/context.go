package uverbs

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"github.com/goverbs/goverbs/uverbs/internal/abi"
)

// createContext creates the kernel's context by ioctl.
func (d *Device) createContext(devx bool) (udata, syscall.Errno) {
	cmd := newIoctl(abi.UVERBS_OBJECT_DEVICE, abi.UVERBS_METHOD_GET_CONTEXT)
	defer cmd.done()
	var vectors [4]byte
	var support [8]byte
	cmd.out(abi.UVERBS_ATTR_GET_CONTEXT_NUM_COMP_VECTORS, vectors[:])
	cmd.out(abi.UVERBS_ATTR_GET_CONTEXT_CORE_SUPPORT, support[:])
	u := d.driver.contextUdata(ioctlContext, devx)
	cmd.udata(u)
	errno := d.cmd.ioctl(cmd)
	d.vectors = int(le32(vectors[:]))
	return u, errno
}

// getContext creates the kernel's context.
func (d *Device) getContext(devx devxMode) error {
	if !d.driver.capabilities().devx {
		if devx == devxRequired {
			return noFeature(d, "DEVX")
		}
		devx = devxOff
	}
	u, errno := d.createContext(devx != devxOff)
	switch {
	case devx == devxRequired && absent(errno):
		return noDEVX(errNoIoctl)
	case devx == devxRequired && errno == syscall.EINVAL: // as mlx5_ib_devx_create says it
		if u, errno = d.createContext(false); errno == 0 {
			return noDEVX(errNoContext)
		}
	case devx == devxPossible && errno != 0 && !absent(errno):
		u, errno = d.createContext(false)
	}
	if errno == 0 {
		if err := d.openEvents(); err != nil {
			return err
		}
		return d.driver.openContext(d, u)
	}
	if errno == syscall.EPERM {
		return d.cmd.fail("GET_CONTEXT", errno, "a sandbox forbids ioctl(); in a container: --security-opt seccomp=FILE that allows it")
	}
	if !d.cmd.older(errno) {
		return d.cmd.fail("GET_CONTEXT", errno, "")
	}
	req := &abi.GetContext{}
	resp := &abi.GetContextResp{}
	u = d.driver.contextUdata(writeContext, false)
	if errno := d.cmd.legacy(abi.IB_USER_VERBS_CMD_GET_CONTEXT, bytesOf(req), bytesOf(resp), u); errno != 0 {
		return d.cmd.fail("GET_CONTEXT", errno, "")
	}
	d.vectors = int(resp.NumCompVectors)
	d.asyncFD = -1
	var err error
	if d.async, err = d.cmd.Events(resp.AsyncFD, "asynchronous events of "+d.Name()); err != nil {
		return err
	}
	return d.driver.openContext(d, u)
}

// devxMode says whether a device is opened for commands to the firmware.
type devxMode uint8

const (
	devxOff      devxMode = iota
	devxPossible          // if the adapter can
	devxRequired
)

// devxEnv is the environment variable that has devices opened for commands to the firmware where possible,
// also by package cm.
const devxEnv = "RDMADEVX"

func devxFromEnv() (devxMode, error) {
	switch v := os.Getenv(devxEnv); v {
	case "", "0":
		return devxOff, nil
	case "1":
		return devxPossible, nil
	default:
		return 0, argErr("Open", "environment variable "+devxEnv, fmt.Sprintf("%q", v), `"1", "0" or unset`)
	}
}

// noDEVX is the error of a device without commands of DEVX.
func noDEVX(cause error) error { return &FeatureError{Feature: "DEVX", Driver: "mlx5", Err: cause} }

// Reasons why a device has no commands of DEVX.
var (
	errNoContext = errors.New("the adapter does not have the capability log_max_uctx, or has no user context left")
	errNoIoctl   = errors.New("it needs the ioctl interface, which the kernel does not have or " + abiPathEnv + "=write rules out")
)

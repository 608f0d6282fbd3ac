package uverbs

import (
	"errors"
	"slices"
	"syscall"
	"testing"
)

// TestPortSpeed: the speed comes in units of 100 Mbit/s, and only by ioctl.
func TestPortSpeed(t *testing.T) {
	eachFakePath(t, func(t *testing.T, d *Device, k *fakeKernel, method, legacy string) {
		speed, err := d.PortSpeed(1)
		var feature *FeatureError
		switch method {
		case "ioctl":
			if err != nil || speed != 402.5 {
				t.Errorf("the speed is %v, %v, want 402.5", speed, err)
			}
			k.refuse["QUERY_PORT_SPEED"] = syscall.EOPNOTSUPP
			if _, err := d.PortSpeed(1); !errors.As(err, &feature) || feature.Driver != "rxe" {
				t.Errorf("a driver without it: %v", err)
			}
			k.refuse["QUERY_PORT_SPEED"] = syscall.EPROTONOSUPPORT
			if _, err := d.PortSpeed(1); !errors.As(err, &feature) || feature.Since != (Version{7, 0}) {
				t.Errorf("a kernel without it: %v", err)
			}
		default:
			if !errors.As(err, &feature) || feature.Feature != "QUERY_PORT_SPEED" {
				t.Errorf("without ioctl: %v", err)
			}
		}
		calls := len(k.calls)
		for _, port := range []uint8{0, d.Attr().PhysPortCount + 1} {
			var arg *ArgError
			if _, err := d.PortSpeed(port); !errors.As(err, &arg) || arg.Field != "port" {
				t.Errorf("port %d: %v", port, err)
			}
		}
		if len(k.calls) != calls {
			t.Errorf("the kernel got a query of a port that does not exist: %v", slices.Clone(k.calls[calls:]))
		}
	})
}

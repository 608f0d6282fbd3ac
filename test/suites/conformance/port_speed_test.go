package conformance

import (
	"testing"

	"github.com/goverbs/goverbs/test/testenv"
)

// TestPortSpeed compares the effective speed of a port with its width and the speed of a lane. A port of a
// bond or of a virtual function may differ, but no modelled card has those.
func TestPortSpeed(t *testing.T) {
	eachPath(t, func(t *testing.T) {
		dev := openDevice(t, deviceName)
		speed, err := dev.PortSpeed(1)
		testenv.Skip(t, err)
		must(t, err)
		attr, err := dev.Port(1)
		must(t, err)
		if want := attr.ActiveSpeed.Gbps() * float64(attr.ActiveWidth.Lanes()); speed <= 0 || testenv.Modelled() && speed != want {
			t.Errorf("the speed is %g Gbit/s, that of %d lanes with %g Gbit/s", speed, attr.ActiveWidth.Lanes(), attr.ActiveSpeed.Gbps())
		}
		_, err = dev.PortSpeed(99)
		argError(t, err, "port")
	})
}

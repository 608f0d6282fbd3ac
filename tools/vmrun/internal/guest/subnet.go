package guest

import (
	"bytes"
	"fmt"
	"os"
)

// SubnetManager is the Debian package of the subnet manager.
const SubnetManager = "opensm"

// The subnet manager's output goes to subnetOutput, and its log to subnetLog.
const (
	subnetOutput = "/tmp/opensm.out"
	subnetLog    = "/tmp/opensm.log"
)

// manageSubnet starts the subnet manager, which runs until the machine is switched off.
func (p *initProc) manageSubnet() error {
	out, err := os.Create(subnetOutput)
	if err != nil {
		return err
	}
	defer out.Close()
	null, err := os.Open(os.DevNull)
	if err != nil {
		return err
	}
	defer null.Close()
	const path = "/usr/sbin/opensm"
	p.logf("starting %s", path)
	return p.procs.daemon(Program{Path: path, Args: []string{"opensm", "--log_file", subnetLog}}, "/",
		[]string{"OSM_CACHE_DIR=/tmp", "OSM_TMP_DIR=/tmp"}, []uintptr{null.Fd(), out.Fd(), out.Fd()})
}

// subnetError adds the end of what the subnet manager has printed to an error that it may have caused.
func (p *initProc) subnetError(err error) error {
	const most = 1 << 10
	b, readErr := os.ReadFile(subnetOutput)
	if readErr != nil {
		return err // another host has the subnet manager
	}
	return fmt.Errorf("%w; the subnet manager says: %s", err, bytes.TrimSpace(b[max(0, len(b)-most):]))
}

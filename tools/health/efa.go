package health

import (
	"fmt"
	"strings"

	"github.com/goverbs/goverbs/netlinkrdma"
	"github.com/goverbs/goverbs/tools/internal/objects"
	"github.com/goverbs/goverbs/uverbs"
)

// onEFA reports whether a device is an Elastic Fabric Adapter of AWS. It sends datagrams through the network of
// AWS to a GID, and has neither a network interface nor IP addresses nor a connection manager.
func onEFA(i uverbs.DeviceInfo) bool { return i.Protocol == string(netlinkrdma.ProtocolEFA) }

// otherThanEFA reports whether a device is one of the kernel and not on EFA.
func otherThanEFA(i uverbs.DeviceInfo) bool { return ofKernel(i) && !onEFA(i) }

// checkEFA says which requests an EFA device does not have.
func checkEFA(device string, a uverbs.EFAAttr) Finding {
	f := Finding{Code: CodeEFA, Device: device}
	var missing []string
	for _, c := range []struct {
		name string
		has  bool
	}{{"RDMA READ", a.RDMARead}, {"RDMA WRITE", a.RDMAWrite}, {"retries of a receiver that is not ready", a.RNRRetry}, {"events of completions", a.Notify}} {
		f.see("%s: %s", c.name, choose(c.has, "yes", "no"))
		if !c.has {
			missing = append(missing, c.name)
		}
	}
	if missing == nil {
		return f.conclude(LevelOK, "SEND, RDMA READ and RDMA WRITE by SRD")
	}
	f.fix("use another type of instance, or a newer kernel or driver, or do without it; AWS lists the types with RDMA READ and WRITE")
	return f.conclude(LevelInfo, "this device or its driver does not have %s", strings.Join(missing, ", "))
}

// checkEFAGID looks at the one GID of an EFA port.
func checkEFAGID(device string, p portFacts) Finding {
	f := Finding{Code: CodeGID, Device: device, Port: int(p.Num)}
	if p.gidErr != nil {
		f.see("%s", p.gidErr)
		return f.conclude(LevelError, "the GID cannot be read")
	}
	if len(p.gids) == 0 {
		f.see("the GID table is empty")
		f.fix("load the driver again: modprobe -r efa; modprobe efa")
		return f.conclude(LevelError, "no GID, so that no peer can send to it")
	}
	f.see("peers send to this GID, to a QP number and with a Q_Key, which programs exchange by other means, such as TCP")
	return f.conclude(LevelOK, "the address is GID %s", p.gids[0].GID)
}

// withoutCM is what the doctor says of connections on an EFA device, to itself or to a peer.
func (m *machine) withoutCM(device string) (bool, Finding) {
	f := Finding{Code: CodeCM, Device: device}
	f.see("the kernel's connection manager does not use EFA devices: cm.Dial, cm.Listen and librdmacm do not find them")
	if m.peer == "" {
		return true, f.conclude(LevelInfo, "no connection manager: programs exchange GID, QP number and Q_Key themselves")
	}
	f.Code = CodePeer
	f.fix("measure between the hosts with queue pairs of type SRD, which are set up over TCP: verbs perf --help")
	return false, f.conclude(LevelError, "%s is not tried: that takes a connection manager, which EFA devices do not have", m.peer)
}

// checkEFANetwork reminds of what only the settings of AWS show.
func checkEFANetwork() Finding {
	f := Finding{Code: CodeFirewall}
	f.see("not looked at, as the host cannot see it: the security group of the interfaces, their subnets and availability zones")
	f.see("EFA does not pass this host's firewall")
	f.fix("give both hosts a security group that lets all traffic from itself in and all traffic to itself out")
	f.fix("put both hosts into one VPC and one availability zone")
	return f.conclude(LevelInfo, "on EFA the security group must let peers through; CREATE_AH fails for a peer that AWS does not lead to")
}

// loaded reports whether /proc/modules lists a module, and whether it can be read.
func (m *machine) loaded(module string) (there, known bool) {
	list, err := m.text("/proc/modules")
	for line := range strings.Lines(list) {
		there = there || strings.HasPrefix(line, module+" ")
	}
	return there, err == nil
}

// checkGPU reports how the memory of NVIDIA's GPUs can be registered on an EFA device, if there are any.
func (m *machine) checkGPU() Finding {
	if gpu, _ := m.loaded("nvidia"); !gpu {
		return Finding{}
	}
	f := Finding{Code: CodeGPU}
	f.see("/proc/modules: nvidia is listed")
	peermem, _ := m.loaded("efa_nv_peermem")
	f.see("/proc/modules: efa_nv_peermem is %s", seen(peermem, true))
	version, _ := m.text("/proc/driver/nvidia/version") // for a hint only
	open := strings.Contains(version, "Open Kernel Module")
	if version != "" {
		f.see("/proc/driver/nvidia/version: %s", strings.SplitN(version, "\n", 2)[0])
	}
	switch {
	case peermem:
		return f.conclude(LevelOK, "memory of GPUs can be registered by its address")
	case open:
		f.fix("register memory of a GPU as a dma-buf (PD.RegDMABuf); by its address: modprobe efa_nv_peermem, a module of AWS's EFA installer")
		return f.conclude(LevelInfo, "memory of GPUs can be registered as a dma-buf only: efa_nv_peermem is not loaded")
	}
	f.fix("modprobe efa_nv_peermem, a module of AWS's EFA installer; or install NVIDIA's open kernel modules, which export memory as a dma-buf")
	return f.conclude(LevelWarning, "memory of GPUs likely cannot be registered: efa_nv_peermem is not loaded")
}

// lookForEFA reports an EFA card that has no driver, or an AWS instance without such a card.
func (m *machine) lookForEFA(f *Finding) {
	const bus, amazon = "/sys/bus/pci/devices/", "0x1d0f"
	entries, _ := m.list(bus) // without it nothing is known
	aws := false
	for _, function := range entries {
		vendor, _ := m.text(bus + function + "/vendor")
		device, _ := m.text(bus + function + "/device")
		aws = aws || vendor == amazon
		if vendor != amazon || !strings.HasPrefix(device, "0xefa") {
			continue
		}
		f.see("the PCI function %s is an EFA card (%s:%s)%s", function, vendor, device, choose(m.exists(bus+function+"/driver"), "", ", and has no driver"))
		f.fix("modprobe efa; if this kernel has no such module, as Debian's: install AWS's EFA installer")
		return
	}
	if aws {
		f.see("the PCI bus has functions of AWS, but no EFA card")
		f.fix("attach a network interface of type EFA to the instance, if its type supports that (aws ec2 describe-instance-types)")
	}
}

// loopbackQKey is the Q_Key of the QPs of a loopback.
const loopbackQKey = 0x676f

// readySRD makes the two QPs ready for datagrams to each other.
func (l *loop) readySRD(dev *uverbs.Device, opened *objects.Stack) (told string, err error) {
	e, err := dev.GID(1, 0)
	if err != nil {
		return "", err
	}
	told = fmt.Sprintf("%s QP %d to QP %d of type SRD", e.GID, l.sides[0].qp.QPN(), l.sides[1].qp.QPN())
	for _, s := range l.sides {
		if err := s.qp.ReadyUD(loopbackQKey); err != nil {
			return told, err
		}
	}
	to := uverbs.AHAttr{Port: e.Port, Global: true, GRH: uverbs.GRH{DGID: e.GID}}
	l.ah = objects.Open(opened, func() (*uverbs.AH, error) { return l.pd.CreateAH(to) })
	return told, opened.Err()
}

package health

// Code says which check a finding is the outcome of. Codes stay the same from one version to the next.
type Code string

// The codes, in the order of the checks.
const (
	CodeKernel        Code = "kernel"    // the release of the kernel, and the architecture
	CodeContainer     Code = "container" // what a container needs
	CodeModule        Code = "module."   // and the name of a module of the kernel
	CodeNamespace     Code = "namespace" // whether network namespaces share devices
	CodeDevices       Code = "devices"   // which devices there are
	CodeRDMACM        Code = "rdma_cm"   // the connection manager of the kernel
	CodeMemlock       Code = "memlock"   // the limit of locked memory
	CodeVM            Code = "vm"        // settings of the kernel's memory
	CodeGPU           Code = "gpu"       // whether memory of GPUs can be registered
	CodeDevice        Code = "device"    // the driver of a device
	CodeCharDev       Code = "chardev"   // its character device, and the right to open it
	CodeOpen          Code = "open"      // whether it can be opened
	CodeRegister      Code = "register"  // whether memory can be registered
	CodeEFA           Code = "efa"       // what an EFA device can do
	CodePort          Code = "port"      // the state of a port
	CodeMTU           Code = "mtu"       // the MTU of a port and of its network interface
	CodeGID           Code = "gid"       // the GID table of a port
	CodeAddress       Code = "address"   // the address of a software device, or of an iWARP device
	CodeReceiveBuffer Code = "receive_buffer"
	CodeLoopback      Code = "loopback" // a ping-pong within this process
	CodeCM            Code = "cm"       // connections of the connection manager from addresses of a port to themselves
	CodePeer          Code = "peer"     // connections to the host that Options name
	CodeFirewall      Code = "firewall"
	CodeExpected      Code = "expected" // the result of Report.Compare

	// Of a Watch, which has CodeDevices and CodeOpen, too.
	CodeDeviceGone Code = "device_gone" // a device that was there before
	CodeLink       Code = "link"        // the state of a port, and its changes
	CodeSpeed      Code = "speed"       // the rate of a port
	CodeGIDChange  Code = "gid_change"  // changes of a GID table
	CodeCounters   Code = "counters"    // counters of errors and congestion that grow
	CodeQPError    Code = "qp_error"    // QPs that stay in state ERR
	CodePinned     Code = "pinned"      // processes near their limit of pinned memory
	CodeState      Code = "state"       // the file that the watch keeps
)

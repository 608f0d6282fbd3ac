package uverbs

import (
	"fmt"
	"slices"

	"github.com/goverbs/goverbs/uverbs/internal/abi"
)

// ESPFlags are properties of an ESP action (enum ib_uverbs_flow_action_esp_flags).
type ESPFlags uint32

// Flags of an ESP action. The zero value decrypts in tunnel mode, with inline crypto.
const (
	ESPFullOffload  ESPFlags = abi.IB_UVERBS_FLOW_ACTION_ESP_FLAGS_FULL_OFFLOAD   // the device also processes headers and trailers
	ESPTransport    ESPFlags = abi.IB_UVERBS_FLOW_ACTION_ESP_FLAGS_TRANSPORT      // transport mode
	ESPEncrypt      ESPFlags = abi.IB_UVERBS_FLOW_ACTION_ESP_FLAGS_ENCRYPT        // encrypt packets that are sent
	ESPESNNewWindow ESPFlags = abi.IB_UVERBS_FLOW_ACTION_ESP_FLAGS_ESN_NEW_WINDOW // the ESN belongs to a new window
)

// espFlagsAll are all ESP flags.
const espFlagsAll = ESPFullOffload | ESPTransport | ESPEncrypt | ESPESNNewWindow

// ESPKey is a key for AES-GCM, the only cipher (struct ib_uverbs_flow_action_esp_keymat_aes_gcm).
type ESPKey struct {
	Key    []byte // Key has 16, 24 or 32 bytes.
	ICVLen int    // ICVLen is the length of the integrity check value, 8, 12 or 16 bytes; by default 16.
	Salt   uint32 // Salt is the salt of the AES-GCM nonce.
	IV     uint64 // IV is the first initialization vector; it is incremented for each packet.
}

// ESPAttr are the parameters of a security association (struct ib_uverbs_flow_action_esp).
type ESPAttr struct {
	SPI              uint32   // SPI is the security parameters index.
	Seq              uint32   // Seq is the first sequence number.
	TFCPad           uint32   // TFCPad is the padding that hides lengths, in bytes.
	Flags            ESPFlags // Flags say how the packets are treated.
	HardLimitPackets uint64   // HardLimitPackets is the number of packets after which the association ends; 0 means no limit.
}

// ESPOptions are the options of [Device.CreateFlowActionESP], which requires Attr and Key, and of
// [FlowAction.ModifyESP]. Fields that are nil are not sent to the kernel.
type ESPOptions struct {
	Attr         *ESPAttr // Attr are the parameters.
	Key          *ESPKey  // Key is the cipher's key.
	ESN          *uint32  // ESN is the upper half of the 64-bit extended sequence number.
	ReplayWindow *uint32  // ReplayWindow is the size of the replay protection window, in packets; 0, which only ModifyESP accepts, turns it off.
	Encap        FlowSpec // Encap is the outer header of a tunnel: the Val of a FlowIPv4 or FlowIPv6.
}

// FlowAction is an IPsec ESP action for the packets of a flow (struct ibv_flow_action). It is safe
// for concurrent use.
type FlowAction struct {
	object
	handle uint32
}

// CreateFlowActionESP creates an action that encrypts or decrypts packets
// (ibv_create_flow_action_esp). A flow uses it with [FlowActionHandle].
func (d *Device) CreateFlowActionESP(o ESPOptions) (*FlowAction, error) {
	const op = "CreateFlowActionESP"
	if o.Attr == nil {
		return nil, argErr(op, "Attr", "nil", "an ESPAttr")
	}
	if o.Key == nil {
		return nil, argErr(op, "Key", "nil", "an ESPKey")
	}
	if o.ReplayWindow != nil && *o.ReplayWindow == 0 {
		return nil, argErr(op, "ReplayWindow", 0, "at least 1, or nil for no protection")
	}
	in, err := o.encode(op)
	if err != nil {
		return nil, err
	}
	a := &FlowAction{}
	if err := a.addParents(d, "FlowAction", "DESTROY_FLOW_ACTION", &d.object); err != nil {
		return nil, err
	}
	cmd := newIoctl(abi.UVERBS_OBJECT_FLOW_ACTION, abi.UVERBS_METHOD_FLOW_ACTION_ESP_CREATE)
	defer cmd.done()
	handle := cmd.newObj(abi.UVERBS_ATTR_CREATE_FLOW_ACTION_ESP_HANDLE)
	in.add(cmd)
	if errno := d.cmd.ioctl(cmd); errno != 0 {
		a.removeParents()
		return nil, d.cmd.fail("CREATE_FLOW_ACTION_ESP", errno, "")
	}
	a.handle = uint32(handle.Data)
	return a, a.markCreated(a)
}

// ModifyESP changes the parameters that are not nil in o (ibv_modify_flow_action_esp).
func (a *FlowAction) ModifyESP(o ESPOptions) error {
	if err := a.acquire(); err != nil {
		return err
	}
	defer a.release()
	in, err := o.encode("ModifyESP")
	if err != nil {
		return err
	}
	cmd := newIoctl(abi.UVERBS_OBJECT_FLOW_ACTION, abi.UVERBS_METHOD_FLOW_ACTION_ESP_MODIFY)
	defer cmd.done()
	cmd.obj(abi.UVERBS_ATTR_MODIFY_FLOW_ACTION_ESP_HANDLE, a.handle)
	in.add(cmd)
	return a.dev.cmd.fail("MODIFY_FLOW_ACTION_ESP", a.dev.cmd.ioctl(cmd), "")
}

// espInput are the options in the kernel's form; nil fields are not sent.
type espInput struct {
	attr, key []byte
	esn       *uint32
	window    *uint32
	encap     *abi.FlowActionESPEncap
}

// encode checks and converts the options. It creates no attributes, because those of a command that
// is never issued would stay pinned.
func (o *ESPOptions) encode(op string) (*espInput, error) {
	in := &espInput{esn: o.ESN, window: o.ReplayWindow}
	var err error
	if o.Attr != nil {
		if in.attr, err = o.Attr.encode(op); err != nil {
			return nil, err
		}
	}
	if o.Key != nil {
		if in.key, err = o.Key.encode(op); err != nil {
			return nil, err
		}
	}
	if o.Encap != nil {
		if in.encap, err = encodeEncap(op, o.Encap); err != nil {
			return nil, err
		}
	}
	return in, nil
}

// add adds the options to a command.
func (in *espInput) add(cmd *ioctlCommand) {
	if in.attr != nil {
		cmd.in(abi.UVERBS_ATTR_FLOW_ACTION_ESP_ATTRS, in.attr)
	}
	if in.esn != nil {
		cmd.u32(abi.UVERBS_ATTR_FLOW_ACTION_ESP_ESN, *in.esn)
	}
	if in.key != nil {
		cmd.choice(abi.UVERBS_ATTR_FLOW_ACTION_ESP_KEYMAT, abi.IB_UVERBS_FLOW_ACTION_ESP_KEYMAT_AES_GCM, in.key)
	}
	switch {
	case in.window == nil:
	case *in.window == 0:
		cmd.choice(abi.UVERBS_ATTR_FLOW_ACTION_ESP_REPLAY, abi.IB_UVERBS_FLOW_ACTION_ESP_REPLAY_NONE, nil)
	default:
		bmp := &abi.FlowActionESPReplayBmp{Size: *in.window}
		cmd.choice(abi.UVERBS_ATTR_FLOW_ACTION_ESP_REPLAY, abi.IB_UVERBS_FLOW_ACTION_ESP_REPLAY_BMP, bytesOf(bmp))
	}
	if in.encap != nil {
		cmd.in(abi.UVERBS_ATTR_FLOW_ACTION_ESP_ENCAP, bytesOf(in.encap))
	}
}

// encode returns the parameters in the kernel's form.
func (a *ESPAttr) encode(op string) ([]byte, error) {
	if a.Flags&^espFlagsAll != 0 {
		return nil, argErr(op, "Flags", fmt.Sprintf("%#x", uint32(a.Flags)), "the ESP flags, together %#x", uint32(espFlagsAll))
	}
	return bytesOf(&abi.FlowActionESP{
		Spi:           a.SPI,
		Seq:           a.Seq,
		TfcPad:        a.TFCPad,
		Flags:         uint32(a.Flags),
		HardLimitPkts: a.HardLimitPackets,
	}), nil
}

// encode returns the key in the kernel's form.
func (k *ESPKey) encode(op string) ([]byte, error) {
	if !slices.Contains([]int{16, 24, 32}, len(k.Key)) {
		return nil, argErr(op, "Key.Key", fmt.Sprintf("%d bytes", len(k.Key)), "16, 24 or 32 bytes")
	}
	icv := orDefault(k.ICVLen, 16)
	if !slices.Contains([]int{8, 12, 16}, icv) {
		return nil, argErr(op, "Key.ICVLen", k.ICVLen, "8, 12 or 16")
	}
	gcm := &abi.FlowActionESPKeymatAESGCM{
		IV:     k.IV,
		IVAlgo: abi.IB_UVERBS_FLOW_ACTION_IV_ALGO_SEQ,
		Salt:   k.Salt,
		ICVLen: uint32(icv),
		KeyLen: uint32(len(k.Key)),
	}
	copy(bytesOf(&gcm.AESKey), k.Key)
	return bytesOf(gcm), nil
}

// encodeEncap returns the values of an outer header in the kernel's form. The result points to
// them, and they are pinned while the command runs.
func encodeEncap(op string, s FlowSpec) (*abi.FlowActionESPEncap, error) {
	var typ uint16
	var n int
	var inner bool
	switch s := s.(type) {
	case FlowIPv4:
		typ, n, inner = flowSpecIPv4, len(bytesOf(&abi.FlowIPv4Filter{})), s.Inner
	case FlowIPv6:
		typ, n, inner = flowSpecIPv6, len(bytesOf(&abi.FlowIPv6Filter{})), s.Inner
	default:
		return nil, argErr(op, "Encap", fmt.Sprintf("a %T", s), "a FlowIPv4 or a FlowIPv6")
	}
	if inner {
		return nil, argErr(op, "Encap", "an inner header", "an outer one")
	}
	b, err := s.encode()
	if err != nil {
		return nil, err
	}
	hdr := len(bytesOf(&abi.FlowSpecHdr{}))
	return &abi.FlowActionESPEncap{ValPtr: abi.PtrToSlice(b[hdr : hdr+n]), Len: uint16(n), Type: typ}, nil
}

// Close destroys the action (ibv_destroy_flow_action). It fails with EBUSY while a flow
// uses it.
func (a *FlowAction) Close() error {
	return a.close(func() error {
		errno := a.dev.cmd.destroy(abi.UVERBS_OBJECT_FLOW_ACTION, abi.UVERBS_METHOD_FLOW_ACTION_DESTROY, abi.UVERBS_ATTR_DESTROY_FLOW_ACTION_HANDLE, a.handle)
		return a.dev.cmd.fail(a.destroy, errno, "")
	}, nil)
}

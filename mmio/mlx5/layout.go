package mlx5

// Sizes of a WQE and of its segments, in bytes (struct mlx5_wqe_* in mlx5dv.h and
// include/linux/mlx5/qp.h).
const (
	blockSize = 64 // MLX5_SEND_WQE_BB: what a send ring is counted in
	octoSize  = 16 // what a WQE's size is counted in

	ctrlSize   = 16 // struct mlx5_wqe_ctrl_seg
	xrcSize    = 16 // struct mlx5_wqe_xrc_seg
	avSize     = 48 // struct mlx5_wqe_datagram_seg, struct mlx5_wqe_av
	raddrSize  = 16 // struct mlx5_wqe_raddr_seg
	atomicSize = 16 // struct mlx5_wqe_atomic_seg
	dataSize   = 16 // struct mlx5_wqe_data_seg
	inlineSize = 4  // struct mlx5_wqe_inline_seg, before the bytes
	ethSize    = 16 // struct mlx5_wqe_eth_seg without a header
	ethRoom    = 32 // what libmlx5 counts for it: with 18 bytes of header

	ethHeaderSize  = 12 // offset of inline_hdr_sz
	ethHeaderStart = 2  // bytes of the header that stand in the segment itself, at its end
	nextSize       = 16 // struct mlx5_wqe_srq_next_seg

	umrCtrlSize = 48 // struct mlx5_wqe_umr_ctrl_seg
	mkeySize    = 64 // struct mlx5_wqe_mkey_context_seg
	klmSize     = 64 // struct mlx5_wqe_umr_klm_seg, padded: a list of translations has 64-byte lines
)

// struct mlx5_wqe_ctrl_seg.
const (
	ctrlOpcode = 0  // be32: opmod<<24 | index<<8 | opcode
	ctrlQPN    = 4  // be32: number<<8 | size in units of 16 bytes
	ctrlFlags  = 8  // be32: signature, stream, fm_ce_se
	ctrlStream = 9  // be16: dci_stream_channel_id
	ctrlImm    = 12 // be32: immediate, key to invalidate, or mkey of a UMR

	ctrlSizeByte = 7    // the byte of ctrlQPN with the size
	ctrlSizeMask = 0x3f // of which it has 6 bits
)

// fm_ce_se of the control segment.
const (
	flagSolicited  = 1 << 1 // MLX5_WQE_CTRL_SOLICITED
	flagCQE        = 2 << 2 // MLX5_WQE_CTRL_CQ_UPDATE
	flagSmallFence = 1 << 5 // MLX5_WQE_CTRL_INITIATOR_SMALL_FENCE
	flagFence      = 4 << 5 // MLX5_WQE_CTRL_FENCE
)

// Opcodes of WQEs and of the completions of sends (MLX5_OPCODE_*).
const (
	opNop      = 0x00
	opSendInv  = 0x01
	opWrite    = 0x08
	opWriteImm = 0x09
	opSend     = 0x0a
	opSendImm  = 0x0b
	opTSO      = 0x0e
	opRead     = 0x10
	opCAS      = 0x11
	opFAA      = 0x12
	opUMR      = 0x25
)

// struct mlx5_wqe_data_seg and mlx5_wqe_inline_seg.
const (
	inlineFlag  = 1 << 31 // MLX5_INLINE_SEG
	invalidLKey = 0x100   // MLX5_INVALID_LKEY: no more segments follow in a receive
	atomicBytes = 8       // what an atomic is about
	maxLength   = 1 << 31 // of a segment and of a message; it is written as 0
)

// struct mlx5_wqe_av.
const (
	avQKey     = 0  // be32
	avDCKey    = 0  // be64: dc_key, in place of the Q_Key
	avDQPN     = 8  // be32: avExtended | number of the QP or the DCT
	avRateSL   = 12 // static rate<<4 | service level
	avMLID     = 13 // path bits
	avRLID     = 14 // be16: LID, or the UDP source port of RoCE v2
	avMAC      = 20 // 6 bytes, RoCE
	avTClass   = 26
	avHopLimit = 27
	avGRH      = 28 // be32: GRH there<<30 | index<<20 | flow label
	avGID      = 32 // 16 bytes

	avExtended = 1 << 31 // MLX5_EXTENDED_UD_AV
	grhPresent = 1 << 30 // InfiniBand only: RoCE always has one
	rateOffset = 5       // MLX5_STAT_RATE_OFFSET, from the rates of InfiniBand
)

// struct mlx5_wqe_umr_ctrl_seg.
const (
	umrFlags = 0 // one byte
	umrOcto  = 4 // be16: size of the translations in the WQE, in units of 16 bytes
	umrMask  = 8 // be64: which fields of the mkey change

	umrInline    = 1 << 7 // MLX5_WQE_UMR_CTRL_FLAG_INLINE
	umrCheckFree = 1 << 5 // MLX5_WQE_UMR_CTRL_FLAG_CHECK_FREE
	umrOffset    = 1 << 4 // MLX5_WQE_UMR_CTRL_FLAG_TRNSLATION_OFFSET
	umrCheckQPN  = 1 << 3 // MLX5_WQE_UMR_CTRL_FLAG_CHECK_QPN

	maskLen          = 1 << 0  // MLX5_WQE_UMR_CTRL_MKEY_MASK_LEN and following
	maskStart        = 1 << 6  //
	maskKey          = 1 << 13 //
	maskQPN          = 1 << 14 //
	maskLocalWrite   = 1 << 18 //
	maskRemoteRead   = 1 << 19 //
	maskRemoteWrite  = 1 << 20 //
	maskRemoteAtomic = 1 << 21 //
	maskFree         = 1 << 29 //
)

// struct mlx5_wqe_mkey_context_seg.
const (
	mkeyFree   = 0  // one byte: mkeyIsFree
	mkeyAccess = 2  // one byte
	mkeyQPNKey = 4  // be32: number<<8 | low byte of the key
	mkeyStart  = 16 // be64
	mkeyLen    = 24 // be64

	mkeyIsFree = 1 << 6   // MLX5_WQE_MKEY_CONTEXT_FREE
	mkeyNoQPN  = 0xffffff // for any QP

	mkeyLocalWrite   = 1 << 3 // MLX5_WQE_MKEY_CONTEXT_ACCESS_FLAGS_LOCAL_WRITE and following
	mkeyRemoteRead   = 1 << 4 //
	mkeyRemoteWrite  = 1 << 5 //
	mkeyRemoteAtomic = 1 << 6 //
)

// struct mlx5_cqe64; in a CQE of 128 bytes it is the second half.
const (
	cqeSize       = 64
	cqePathBits   = 17     // ml_path
	cqeSLID       = 22     // be16
	cqeFlagsRQPN  = 24     // be32: service level<<24, GRH<<28, source QP
	cqeL3L4       = 28     // hds_ip_ext: checksums that are right
	cqeHeaders    = 29     // l4_l3_hdr_type
	cqeVLAN       = 30     // be16: vlan_info
	cqeUIdx       = 32     // be32: srqn_uidx
	cqeImm        = 36     // be32: imm_inval_pkey
	cqeByteCount  = 44     // be32
	cqeTimestamp  = 48     // be64
	cqeVendor     = 54     // vendor_err_synd of an error
	cqeSyndrome   = 55     // syndrome of an error
	cqeOpQPN      = 56     // be32: sop_drop_qpn, opcode of the send<<24 | QP
	cqeCounter    = 60     // be16: wqe_counter
	cqeOwn        = 63     // op_own: opcode<<4 | inline<<2 | owner
	cqeLastWord   = 60     // the 4 bytes that hold the counter and op_own
	cqeHasVLAN    = 1 << 0 // of cqeHeaders
	cqeInline32   = 1 << 2
	cqeInline64   = 1 << 3
	cqeMini       = cqeInline32 | cqeInline64 // the title of compressed completions
	cqeOwnerMask  = 1
	cqeInitialOwn = cqeInvalid << 4
)

// Opcodes of CQEs (MLX5_CQE_*).
const (
	cqeReq          = 0x0
	cqeRespWriteImm = 0x1
	cqeRespSend     = 0x2
	cqeRespSendImm  = 0x3
	cqeRespSendInv  = 0x4
	cqeResize       = 0x5
	cqeReqErr       = 0xd
	cqeRespErr      = 0xe
	cqeInvalid      = 0xf
)

// The UAR page (MLX5_ADAPTER_PAGE_SIZE, MLX5_BF_OFFSET, MLX5_CQ_DOORBELL).
const (
	uarSize       = 4096
	uarCQDoorbell = 0x20
	uarBlueFlame  = 0x800

	regsPerUAR     = 4 // NUM_BFREGS_PER_UAR
	userRegsPerUAR = 2 // MLX5_NUM_NON_FP_BFREGS_PER_UAR: the others are the kernel's
)

// The commands of a CQ's doorbell (MLX5_CQ_DB_REQ_NOT*).
const (
	armAny       = 0
	armSolicited = 1 << 24
	armSeqShift  = 28
	indexMask    = 0xffffff // of CQ indices and of user indices
)

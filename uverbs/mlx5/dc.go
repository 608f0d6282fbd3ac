package mlx5

import (
	"errors"

	layout "github.com/goverbs/goverbs/mmio/mlx5"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/internal/hook"
)

// DCIOptions are the options of [CreateDCI]. SendCQ is required.
type DCIOptions struct {
	SendCQ     *uverbs.CQ         // SendCQ receives the completions of sends.
	MaxSendWR  int                // MaxSendWR is the minimum size of the send queue, in work requests; by default 64.
	MaxSendSGE int                // MaxSendSGE is the maximum number of SGEs of a send; by default 1.
	MaxInline  int                // MaxInline is the maximum inline data of a send, in bytes.
	SignalAll  bool               // SignalAll sets SendSignaled in every send.
	Path       uverbs.PathOptions // Path says how the DCI reaches its targets. AHs have their own GIDs.
	Streams    DCIStreams         // Streams divide the DCI into streams; by default it is not divided.
	OutOfOrder bool               // OutOfOrder has the meaning of QPOptions.OutOfOrder. The targets must set it too.
}

// DCIStreams divide a DCI into streams, each of which may fail alone (struct mlx5dv_dci_streams).
// Requests of one stream are executed in order. When a request fails, the other requests of its
// stream are flushed, and the DCI continues with the other streams. A failed stream stays so until
// [ResetStream], or until the DCI is reset. Linux supports streams since 5.14.
type DCIStreams struct {
	Concurrent int // Concurrent is the number of streams at a time, a power of two from 2; 0 means no streams.
	Failed     int // Failed is the number of failed streams with which the DCI enters QPErr, a power of two; by default 1. It requires Concurrent.
}

// DCTOptions are the options of [CreateDCT]. RecvCQ and SRQ are required.
type DCTOptions struct {
	RecvCQ *uverbs.CQ  // RecvCQ receives the completions of receives.
	SRQ    *uverbs.SRQ // SRQ has the receives.

	// AccessKey is the key that requests must have. Requests with another key are not answered, and
	// only counted: it does not protect against a host that tries all keys.
	AccessKey uint64

	Path uverbs.PathOptions // Path has the port, the GID and the MTU, and what initiators may access.

	OutOfOrder bool // OutOfOrder has the meaning of QPOptions.OutOfOrder. The initiators must set it too.
}

// CreateDCI creates an initiator of DC in state [ib.QPReset] (mlx5dv_create_qp with
// MLX5DV_DCTYPE_DCI). [ReadyDC] makes it ready to send. It fails with a [uverbs.FeatureError] if
// the device does not have DC, or not the streams.
func CreateDCI(p *uverbs.PD, o DCIOptions) (*uverbs.QP, error) {
	q, err := core.CreateDC(p, uverbs.QPOptions{
		Type: ib.DCI, SendCQ: o.SendCQ, MaxSendWR: o.MaxSendWR, MaxSendSGE: o.MaxSendSGE,
		MaxInline: o.MaxInline, SignalAll: o.SignalAll, Path: o.Path, OutOfOrder: o.OutOfOrder,
	}, hook.DC{Streams: o.Streams.Concurrent, Failed: o.Streams.Failed})
	return q, called("CreateDCI", err)
}

// CreateDCT creates a target of DC in state [ib.QPReset] (mlx5dv_create_qp with MLX5DV_DCTYPE_DCT).
// [ReadyDC] makes it ready to receive. It fails with a [uverbs.FeatureError] if the device does not
// have DC.
func CreateDCT(p *uverbs.PD, o DCTOptions) (*uverbs.QP, error) {
	q, err := core.CreateDC(p, uverbs.QPOptions{Type: ib.DCT, RecvCQ: o.RecvCQ, SRQ: o.SRQ, Path: o.Path, OutOfOrder: o.OutOfOrder}, hook.DC{Key: o.AccessKey})
	return q, called("CreateDCT", err)
}

// ReadyDC makes a QP of DC ready: it moves a DCI from [ib.QPReset] to [ib.QPRTS], and a DCT to
// [ib.QPRTR], in which it accepts requests. A DCT gets its number in this step; [uverbs.QP.QPN]
// returns 0 before. The option Path has the port, the GID and the other attributes. The P_Key is
// the one of [uverbs.QP.Init].
//
// A DCT cannot leave QPRTR, and [uverbs.QP.Modify] does not take one. Close it instead.
func ReadyDC(q *uverbs.QP) error { return called("ReadyDC", core.ReadyDC(q, maxReads)) }

// called names the function of this package that the program has called in an error about an argument.
func called(op string, err error) error {
	if arg, ok := errors.AsType[*uverbs.ArgError](err); ok {
		arg.Package, arg.Op = "mlx5", op
	}
	return err
}

// maxReads returns the maximum number of READs and atomics that a DCI has in flight, or 0 if it is
// not known. Only the firmware knows it, which needs DEVX.
func maxReads(q *uverbs.QP) uint8 {
	o, err := core.QP(q, false)
	if err != nil {
		return 0
	}
	defer o.Release()
	if o.Part == nil || !o.Part.DEVX {
		return 0
	}
	caps, err := capsOf(o)
	if err != nil {
		return 0
	}
	return uint8(1 << min(caps.LogDCReads, 7))
}

// ResetStream makes a failed stream of a DCI usable again, without a reset of the DCI
// (mlx5dv_dci_stream_id_reset). The stream no longer counts towards [DCIStreams].Failed.
//
// Call it when all requests of the stream have completed. Of requests that are still in the queue
// some may be flushed, and others executed.
//
// The DCI must be in state [ib.QPRTS]. If too many streams have failed, it is in [ib.QPErr]:
// ResetStream then fails with a [uverbs.ArgError], or, if [uverbs.QP.Query] has not been called
// since, with the firmware's error (a [FirmwareError] since Linux 5.18). Reset the DCI instead.
//
// ResetStream also fails with a [uverbs.ArgError] for a QP of another type or a DCI that was
// created without [DCIStreams], and with a [uverbs.FeatureError] if the adapter does not have the
// capability qpc_extension, or the device was not opened with [uverbs.OpenOptions].DEVX.
func ResetStream(q *uverbs.QP, stream uint16) error {
	const op = "ResetStream"
	o, err := core.QP(q, true)
	if err != nil {
		return err
	}
	defer o.Release()
	switch {
	case o.QP.Type != ib.DCI:
		return argErr(op, "QP type", o.QP.Type, "%s", ib.DCI)
	case q.State() != ib.QPRTS:
		return argErr(op, "state", q.State(), "%s", ib.QPRTS)
	case !o.QP.Streams:
		return argErr(op, "stream", stream, "none for QP %d: the DCI was created without DCIOptions.Streams", q.QPN())
	}
	caps, err := capsOf(o)
	switch {
	case err != nil:
		return err
	case !caps.Extended:
		return lacks("reset of a stream", "qpc_extension")
	}
	in, n := layout.ResetStream(q.QPN(), stream)
	return known(o, &modify, in, make([]byte, n))
}

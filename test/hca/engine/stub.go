package engine

type requester struct {
	nextPSN, ackPSN uint32
	flight          []int
}
type responder struct{ ePSN uint32 }
type umr struct{}
type ethSeg struct{}

const psnMask = 0xffffff

func (r *requester) start(q *qp)           {}
func (r *responder) start(q *qp)           {}
func (q *qp) migrate()                     {}
func (q *qp) toErrorByCommand()            {}
func (q *qp) quiet()                       {}
func (q *qp) toError(why string)           {}
func (q *qp) runSends()                    {}
func (q *qp) runEthernet()                 {}
func (q *qp) flushSends()                  {}
func (w *sendWQE) decodeUMR(r *reader)     {}
func (w *sendWQE) decodeEth(r *reader)     {}
func describeWQE(q *qp, raw []byte) string { return "" }

package hca

import (
	"github.com/goverbs/goverbs/test/hca/engine"
	"github.com/goverbs/goverbs/test/hca/prm"
)

// counterFields are where QUERY_Q_COUNTER's answer has each counter.
var counterFields = [engine.NumCounters]prm.Field{
	engine.CountWrites:             prm.QCWriteRequests,
	engine.CountReads:              prm.QCReadRequests,
	engine.CountAtomics:            prm.QCAtomicRequests,
	engine.CountDCTConnects:        prm.QCDCTConnects,
	engine.CountOutOfBuffer:        prm.QCOutOfBuffer,
	engine.CountOutOfSequence:      prm.QCOutOfSequence,
	engine.CountDuplicates:         prm.QCDuplicate,
	engine.CountRespCQEErrors:      prm.QCRespCQEError,
	engine.CountRespFlushErrors:    prm.QCRespFlush,
	engine.CountRespLengthErrors:   prm.QCRespLength,
	engine.CountRespProtErrors:     prm.QCRespProtection,
	engine.CountRespInvalidErrors:  prm.QCRespInvalid,
	engine.CountRespAccessErrors:   prm.QCRespAccess,
	engine.CountRNRNAKs:            prm.QCRNRNAK,
	engine.CountSequenceNAKs:       prm.QCPacketSeqErr,
	engine.CountImpliedNAKs:        prm.QCImpliedNAK,
	engine.CountTimeouts:           prm.QCLocalAckTimeout,
	engine.CountReqCQEErrors:       prm.QCReqCQEError,
	engine.CountReqFlushErrors:     prm.QCReqFlush,
	engine.CountReqLengthErrors:    prm.QCReqLength,
	engine.CountReqProtErrors:      prm.QCReqProtection,
	engine.CountReqBindErrors:      prm.QCReqMWBinding,
	engine.CountReqResponseErrors:  prm.QCReqBadResponse,
	engine.CountReqInvalidErrors:   prm.QCReqInvalid,
	engine.CountReqAccessErrors:    prm.QCReqAccess,
	engine.CountReqOperationErrors: prm.QCReqOperation,
	engine.CountRetriesExceeded:    prm.QCRetriesExceeded,
	engine.CountRNRRetriesExceeded: prm.QCRNRRetriesExceeded,
}

func (d *Device) allocCounters(c *call) error {
	n, err := d.eng.AllocCounters()
	prm.CounterSetID.Put(c.out, uint64(n))
	return err
}

func (d *Device) deallocCounters(c *call) error {
	return d.eng.DeallocCounters(uint8(prm.CounterSetID.Get(c.in)))
}

func (d *Device) queryCounters(c *call) error {
	if prm.QueryCounterOther.Bool(c.in) || prm.QueryCounterAggregate.Bool(c.in) {
		return refuse(prm.BadParam, "other_vport, aggregate", "the card has counters of its own QPs alone, set by set")
	}
	counts, err := d.eng.QueryCounters(uint8(prm.QueryCounterID.Get(c.in)), prm.QueryClear.Bool(c.in))
	if err != nil {
		return err
	}
	for i, f := range counterFields {
		f.Put(c.out, uint64(counts[i]))
	}
	return nil
}

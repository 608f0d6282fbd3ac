package conformance

import (
	"errors"
	"testing"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// isAtomic reports whether an operation fetches a word and changes it.
func isAtomic(op uverbs.WROpcode) bool { return op == uverbs.WRFetchAdd || op == uverbs.WRCompareSwap }

// noAtomics is the error about a device that has no atomic operations, as its attributes say, or
// nil.
func noAtomics(dev *uverbs.Device) error {
	if dev.Attr().AtomicCap != ib.AtomicNone {
		return nil
	}
	return &uverbs.FeatureError{Feature: "atomic operations", Driver: rig.Driver}
}

// needsAtomics skips a test of an operation that is atomic where there are none.
func needsAtomics(t *testing.T, dev *uverbs.Device, op uverbs.WROpcode) {
	t.Helper()
	if isAtomic(op) {
		testenv.Skip(t, noAtomics(dev))
	}
}

// lacksAtomics notes that the device has no atomic operations, for a test that goes on with others.
func lacksAtomics(t *testing.T, dev *uverbs.Device) bool {
	t.Helper()
	return testenv.Lacks(t, noAtomics(dev))
}

// resizes resizes a CQ and returns the error if CQs keep their size.
func resizes(t *testing.T, name string) error {
	t.Helper()
	cq, err := openDevice(t, name).CreateCQ(uverbs.CQOptions{Size: 1})
	must(t, err)
	closeLater(t, cq)
	if err = cq.Resize(2); !errors.Is(err, errors.ErrUnsupported) {
		must(t, err)
	}
	return err
}

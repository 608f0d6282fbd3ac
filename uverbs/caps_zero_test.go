package uverbs

import (
	"errors"
	"io"
	"reflect"
	"testing"

	"github.com/goverbs/goverbs/uverbs/ib"
)

// TestNoneOf: a device that says of one of its limits that it is 0, or of all, is used as far as that
// goes: each verb works, or is refused by the name of a field or as a feature that is not there.
func TestNoneOf(t *testing.T) {
	d, _ := objectDevice(t)
	pd := value(d.AllocPD())(t)
	cq := value(d.CreateCQ(CQOptions{Size: 10}))(t)
	qp := value(pd.CreateQP(QPOptions{SendCQ: cq, RecvCQ: cq}))(t)
	full := d.attr
	check := func(name string) {
		t.Helper()
		for verb, f := range map[string]func() (io.Closer, error){
			"CreateCQ": func() (io.Closer, error) { return d.CreateCQ(CQOptions{Size: 1}) },
			"CreateQP": func() (io.Closer, error) { return pd.CreateQP(QPOptions{SendCQ: cq, RecvCQ: cq}) },
			"CreateQP/UD": func() (io.Closer, error) {
				return pd.CreateQP(QPOptions{Type: ib.UD, SendCQ: cq, RecvCQ: cq, MaxInline: 1})
			},
			"CreateSRQ": func() (io.Closer, error) { return pd.CreateSRQ(SRQOptions{}) },
			"CreateWQ":  func() (io.Closer, error) { return pd.CreateWQ(WQOptions{CQ: cq}) },
			"CreateAH":  func() (io.Closer, error) { return pd.CreateAH(AHAttr{Port: 1, DLID: 1}) },
			"RegMR": func() (io.Closer, error) {
				return pd.RegSlice(make([]byte, 64), AccessLocalWrite|AccessRemoteAtomic|AccessOnDemand)
			},
			"RegImplicit": func() (io.Closer, error) { return pd.RegImplicit(0) },
			"AllocMW":     func() (io.Closer, error) { return pd.AllocMW(MWType1) },
			"AllocDM":     func() (io.Closer, error) { return d.AllocDM(64, DMOptions{}) },
			"CreateFlow":  func() (io.Closer, error) { return qp.CreateFlow(FlowOptions{Port: 1}) },
			"Port":        func() (io.Closer, error) { _, err := d.Port(1); return nil, err },
			"GID":         func() (io.Closer, error) { _, err := d.GID(1, 0); return nil, err },
			"Endpoint":    func() (io.Closer, error) { _, err := qp.Endpoint(); return nil, err },
			"Resize":      func() (io.Closer, error) { return nil, cq.Resize(20) },
			"CQ.Modify":   func() (io.Closer, error) { return nil, cq.Modify(1, 1) },
			"Modify": func() (io.Closer, error) {
				return nil, qp.Modify(QPAttr{State: ib.QPInit, Port: 1, Access: AccessRemoteAtomic}, AttrState|AttrPort|AttrPKeyIndex|AttrAccess)
			},
		} {
			o, err := f()
			var arg *ArgError
			var feature *FeatureError
			var refused *Error
			switch {
			case err != nil && !errors.As(err, &arg) && !errors.As(err, &feature) && !errors.As(err, &refused):
				t.Errorf("no %s: %s: %v", name, verb, err)
			case err == nil && o != nil:
				must(t, o.Close())
			}
		}
	}
	check("limit that is 0")
	fields := reflect.TypeOf(full)
	for i := range fields.NumField() {
		d.attr = full
		reflect.ValueOf(&d.attr).Elem().Field(i).SetZero()
		check(fields.Field(i).Name)
	}
	d.attr = DeviceAttr{}
	check("limit at all")
	d.attr = full
	must(t, qp.Close(), cq.Close(), pd.Close(), d.Close())
}

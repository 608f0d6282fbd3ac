package soft_test

import (
	"math"
	"net/netip"
	"reflect"
	"testing"
	"time"

	"github.com/goverbs/goverbs/uverbs/soft"
)

// TestFaultsText: every field of the faults is in the text form, and both forms say the same.
func TestFaultsText(t *testing.T) {
	all := soft.Faults{
		Seed: 7,
		Rules: []soft.Rule{
			{Class: soft.ClassMAD},
			{
				Direction: soft.Sent, Peer: netip.MustParsePrefix("10.0.0.0/8"), QPN: 17, Class: soft.ClassSend | soft.ClassNak,
				Loss: soft.Percent, Duplicate: 2 * soft.Percent, Corrupt: 3, Reorder: 4 * soft.Percent, Behind: 5, Hold: 6 * time.Millisecond,
				Delay: soft.Delay{Min: time.Millisecond, Max: 2 * time.Millisecond}, Delayed: 50 * soft.Percent, Rate: 1e6, Remove: 1000,
			},
			{Delay: soft.Delay{Min: 1, Mean: 2}},
		},
		QPs: []soft.QPFault{
			{QPN: 18, NotReady: 1, OutOf: 4, Slow: time.Second, Fail: soft.Fail{Number: 3, Status: 12}},
			{Fail: soft.Fail{Recv: true, Number: math.MaxUint64, Status: 10}},
		},
	}
	const text = "seed=7,class=mad;direction=sent,peer=10.0.0.0/8,qpn=17,class=send|nak,loss=1%,duplicate=2%,corrupt=0.0003%,reorder=4%,behind=5,hold=6ms," +
		"delay=1ms..2ms,delayed=50%,rate=1mbit,remove=1000;delay=1ns+2ns;qpn=18,rnr=1/4,slow=1s,fail=send:3:retry_exc_err;fail=recv:18446744073709551615:rem_access_err"
	if got := all.String(); got != text {
		t.Errorf("the text is\n%s\nwant\n%s", got, text)
	}
	if got, err := soft.ParseFaults(text); err != nil || !reflect.DeepEqual(got, all) {
		t.Errorf("the text means %+v, %v, want %+v", got, err, all)
	}
	for _, set := range []any{all.Rules[1], all.QPs[0]} {
		for v, i := reflect.ValueOf(set), 0; i < v.NumField(); i++ {
			if v.Field(i).IsZero() {
				t.Errorf("the test does not set %s", v.Type().Field(i).Name)
			}
		}
	}
}

// FuzzParseFaults: a device accepts what ParseFaults returns, and String and ParseFaults are inverse to each other.
func FuzzParseFaults(f *testing.F) {
	f.Add("")
	f.Add("loss=0%")
	f.Add("seed=7;class=mad; direction=sent,peer=fd00::/64,loss=0.5%,delay=1ms+2ms,rate=10mbit; rnr=1/4; qpn=17,fail=send:3:12")
	dev, err := soft.New(soft.Options{})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { dev.Close() })
	f.Fuzz(func(t *testing.T, text string) {
		faults, err := soft.ParseFaults(text)
		if err != nil {
			return
		}
		if again, err := soft.ParseFaults(faults.String()); err != nil || !reflect.DeepEqual(again, faults) {
			t.Errorf("%q is %+v, whose text is %q, which is %+v, %v", text, faults, faults, again, err)
		}
		if err := dev.SetFaults(faults); err != nil || !reflect.DeepEqual(dev.Faults(), faults) {
			t.Errorf("%q: the device has %+v, %v, want %+v", text, dev.Faults(), err, faults)
		}
	})
}

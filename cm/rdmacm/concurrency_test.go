package rdmacm

import (
	"testing"

	"github.com/goverbs/goverbs/test/pairs"
)

// Uses of IDs.
const (
	follow pairs.Use = "follow" // the operations of a connection follow one another
)

// concurrency is what the documentation of each type says.
var concurrency = pairs.Table{
	{Object: (*Channel)(nil), Methods: map[pairs.Use]string{pairs.Freely: "Close InProcess NewID Next Read"}},
	{Object: (*Group)(nil), Methods: map[pairs.Use]string{pairs.Freely: "Close"}},
	{Object: (*ID)(nil), Often: true, Methods: map[pairs.Use]string{
		pairs.Freely: `Addrs AddrsByIndex CheckRemote Close ECE GIDs Join JoinWait Migrate Next Notify NextRequest Paths QPAttr Services ShareEvents
			WriteEvent`,
		follow: `Accept AcceptWait Bind Connect ConnectWait CreateQP CreateSRQ Disconnect DisconnectWait Establish Listen Reject
			RequestDisconnect ResolveAddr ResolveRoute ResolveService ResolveWait SetAFOnly SetAckTimeout SetECE SetPath SetQPAckTimeout SetRNRRetryCount SetRetryCount
			SetReuseAddr SetTOS`,
	}},
}

// TestConcurrencyTable: the table has every exported method of every object, once.
func TestConcurrencyTable(t *testing.T) { concurrency.Check(t) }

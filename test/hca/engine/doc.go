// Package engine is the data path of a ConnectX-5, seen from the device's side: it
// executes work queue entries, writes completions and events, and talks to other
// devices over a [Fabric]. It knows neither PCI nor mailboxes: whoever decodes the
// command interface calls it with typed specs, and hands it every store to a UAR page.
//
// # Objects
//
// A [Device] holds PDs, EQs, CQs, memory keys, SRQs (basic and XRC), RQs and SQs of the
// Ethernet driver, XRC domains and QPs. Create functions check what hardware and
// firmware would check and return an [*Error] that names the object, the field and the
// kind of the refusal.
//
// # Time
//
// Devices on one fabric share a lock, a clock and a queue of things to do. A fabric runs
// by itself in real time, or by hand ([FabricConfig.Manual]): then nothing happens until
// [Fabric.Run], time is virtual, and everything is a function of the seed.
//
// # What is checked
//
// Every byte that hardware would read is checked, and what a driver must not do is
// recorded as a [Violation], with the work queue entry in words. A violation isn't a
// failed operation: a wrong rkey is a completion with an error, which programs may
// provoke; a doorbell before its record is a violation.
//
// # What it is not
//
// Vendor syndromes are those that users of real cards report, not a list of the vendor;
// limits and timing are this package's own. Signature handover (PSV) and tag matching are not
// modelled: a WQE that asks for one of them is refused by name. No document says when a card
// compresses CQEs, and when it gives up the rest of a striding RQ's WQE: the model compresses what
// follows within 10 µs, and gives up the rest for a frame that does not fit. The packets of DC and
// what a target answers to a wrong access key (here nothing) no header shows. How a masked
// fetch-and-add lies in a WQE no driver shows; two words, summand and boundaries, are taken. Stores
// reach the model one by one and in order, so that a missing write barrier can't be seen.
package engine

// Package probe probes the paths between hosts all the time, and answers the probes of others. It
// shows loss and latency of each path to each peer. "verbs exporter --probe" is this package with
// package metrics; an agent that runs on each node can have both inside.
//
//	p, err := probe.New(probe.Options{
//		Peers:  []string{"rdma-nodes.default.svc"}, // a name with many addresses, or @FILE
//		Listen: fmt.Sprintf(":%d", probe.Port),
//		Allow:  []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")},
//		Warn:   func(err error) { log.Print(err) },
//	})
//	if err != nil {
//		return err
//	}
//	go func() { done <- p.Run(ctx) }()
//	...
//	for _, r := range p.Results() {
//		fmt.Println(r.Peer, r.Device, r.Path, r.Transport, r.Sent, r.Lost)
//	}
//
// The example of [Prober] is a whole agent, with metrics for Prometheus and a decision of its own.
//
// # Probes
//
// On each path there are two kinds of probes, in bursts each 100 ms or so:
//
//   - UD: [Options.Rate] datagrams per second, which the peer's program echoes. Nothing repeats
//     them, so they show loss. An echo also says which of the 64 datagrams before it have arrived,
//     so that loss on the way there ([Forward]) and on the way back ([Return]) are told apart. The
//     first datagram of a burst gives the latency.
//   - RC: an RDMA READ of 8 bytes with each burst, which the peer's card answers without its
//     processor. It shows the latency of the network and of the two cards. Lost packets are
//     repeated.
//
// Latencies are by the clock of the card, from [uverbs.Device.ReadClock] before the post to the
// time stamp of the completion, where CQs have time stamps ([uverbs.CQTimestamp]), and otherwise by
// the clock of the system. A card that answers takes its own time out of the latency of a datagram,
// too.
//
// A path is a flow label. Cards choose the UDP source port by it, and switches choose one of
// several equal routes by that port. Rxe chooses the port by the QP; each path has QPs of its own,
// so that paths differ there, too. Software devices (package soft) have one port. The route to the
// peer chooses the local device, or [Options.Source] does.
//
// # How a peer is found
//
// A prober sends a datagram request (SIDR) to the peer's connection manager (rdma_cm), which
// answers with the QP for datagrams, and connects the RC QP with it. A request over the exporter's
// HTTP port would need a second way through firewalls, and a secret. The connection manager uses
// the network that is probed, knows the GID, LID, P_Key and Q_Key on InfiniBand and RoCE, and
// reports at once that a process on the other side has ended. iWARP has no datagrams and is not
// supported.
//
// If a peer ends, or does not answer for 5 s, the prober tries again after 1 s, and later on after
// up to 15 s. All probes that were due meanwhile count as lost, with the reason as their [Cause].
// Names are looked up and files read each 10 s. Replace a file by renaming another one, so that no
// part of it is read; one that is empty or cannot be read leaves the peers. [Options.Warn] says once
// that a peer, a name or a file does not work.
//
// # Trust
//
// Peers are not authenticated, but limited: [Options.Sessions] paths, 64 of one address, which give
// way after 10 s without a ping; the rate that a path has announced, and 50,000 pings per second
// together; one RC QP for each path, without any receive. Requests of hosts outside of
// [Options.Allow] are refused. On devices of the kernel the address is what the request claims, so
// a host that lies can hold more than its share; but on Ethernet its datagrams are dropped unless
// they come from that address. A datagram needs the random token of its session, or it is dropped
// before anything is looked up. A prober's QP has a random Q_Key that only the peer knows. An
// answer is as long as its ping. Peers may read 8 bytes, which are zero, and no other memory, one
// READ of a path after the other: the card answers them, and nothing here limits how many there are
// in a second. A port that answers takes 4 MiB; one that fails is tried again after 5 s. Each path
// that is probed takes 152 bytes for each ping of 2 s, 64 at least, besides the queues of its two
// QPs. The statements of a peer change only the counters of its own path.
package probe

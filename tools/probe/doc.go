// Package probe probes the paths between hosts all the time, and answers the probes of others. It shows loss and
// latency of each path to each peer. "verbs exporter --probe" is this package with package metrics; an agent that
// runs on each node can have both inside.
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
//   - UD: [Options.Rate] datagrams per second, which the peer's program echoes. Nothing repeats them, so they show
//     loss. An echo also says which of the 64 datagrams before it have arrived, so that loss on the way there
//     ([Forward]) and on the way back ([Return]) are told apart. The latency is that of the first one of a burst.
//   - RC: an RDMA READ of 8 bytes with each burst, which the peer's card answers without its processor. It shows the
//     latency of the network and of the two cards. Lost packets are repeated.
//
// The latency is by the clock of the card, from [uverbs.Device.ReadClock] before the post to the time stamp of the
// completion, where CQs have time stamps ([uverbs.CQTimestamp]), and otherwise by the clock of the system. A card
// that answers takes its own time out of the latency of a datagram, too.
//
// A path is a flow label. Cards choose the UDP source port by it, and so do software devices; switches choose one of
// several equal routes by that port. Rxe chooses the port by the QP. Each path has QPs of its own, so that paths
// differ there, too. The device is that of the route to the peer, or of [Options.Source].
//
// # How a peer is found
//
// A prober asks the peer's connection manager (rdma_cm) for the QP that answers, with a datagram request (SIDR), and
// connects the RC QP with it. Compared with a request over the exporter's HTTP port this needs no second way through
// firewalls and no secret; the answer comes over the network that is probed; it has the GID, LID, P_Key and Q_Key for
// both InfiniBand and RoCE; and the kernel tells at once when a process on the other side ends. iWARP has no
// datagrams and is not supported.
//
// A peer that ends, or does not answer for 5 s, is asked again after 1 s, and later on after up to 15 s. All probes
// that were due meanwhile count as lost, with the reason as their [Cause]. Names are looked up and files read each
// 10 s. A file that is replaced should be renamed into place, since a part of it would be all of the peers.
//
// # Trust
//
// Peers are not authenticated. What they can hold and cause is bounded: [Options.Sessions] paths, 64 of one address,
// which give way after 10 s without a ping; the rate that a path has announced, and 50,000 pings per second together;
// one RC QP for each path, without any receive. Requests of hosts outside of [Options.Allow] are refused. A datagram
// needs the random token that the connection manager has sent to the address of the request; others are dropped
// before anything is looked up. An answer is as long as its ping. Peers may read 8 bytes, which are zero, and no
// other memory. A port that answers takes 4 MiB, and a path that is probed 104 bytes for each ping of 2 s, and about
// 80 KiB. What a peer says changes only the counters of its own path.
package probe

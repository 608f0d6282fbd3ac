// Package udp sends and receives the packets of RoCE v2 in batches, over UDP sockets that need no
// rights.
//
// A [Batch] collects packets to send. A [Socket] is bound to one address of the host, seals and checks
// ICRCs, and moves batches: on Linux by sendmmsg with UDP_SEGMENT and recvmmsg with UDP_GRO, on other
// systems by one call for each packet.
//
// The ICRC covers the IPv4 header, which the system writes. The socket asks for what can be foreseen:
// DF set and, where a packet is not one of several segments, ID 0. On Linux, this takes a socket that is
// not connected and does path MTU discovery of the kind PROBE. Two sockets with loopback addresses leave the ICRC
// out, see peers.go.
package udp

// Package ordered sends messages over SRD, the reliable datagrams of AWS EFA, and delivers them in
// the order in which they were sent. It is an example to copy: see srdcat for a program that uses
// it.
//
// SRD delivers each message once, but in any order, and a message that finds no receive has to be
// repeated by the device. So each side tells the other how many messages it has receives for, and
// messages have numbers: one that overtakes others stays in its receive until they are there.
// Memory is allocated once. A peer that breaks the protocol ends its own connection; every
// connection has a QP, memory and a CQ of its own, so it delays no other one.
//
// Both sides meet over TCP, where they say who they are. The TCP connection stays as long as they
// talk: it tells that a peer has died, even if there is nothing to send to it, and when both have
// received all and may close their QPs. Nothing is encrypted, and whoever reaches the TCP port may
// connect.
//
// A message has up to 8 KiB, or less if the device has less: see [Conn.MaxSize].
package ordered

// Package rtnetlink reads the network interfaces, addresses, routes and neighbours of a network
// namespace (NETLINK_ROUTE in the kernel).
//
// It decodes the few attributes that the library needs. Package nl of the module
// github.com/vishvananda/netlink exchanges the messages. Package netlink of that module also decodes
// all types of links and routes, and cannot be linked in part: with it, the command verbs had
// 11,059,362 bytes instead of 10,838,178 (amd64, November 2026).
package rtnetlink

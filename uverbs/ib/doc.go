// Package ib has the values of the InfiniBand architecture that every layer of this module speaks
// of: identifiers, states, types, rates, and times in the encoding of the standard. RoCE and iWARP devices
// use the same values. The kernel's rdma/ib_verbs.h and the wire have the same numbers.
//
// The package does nothing with a device.
package ib

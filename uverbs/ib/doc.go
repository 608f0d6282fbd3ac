// Package ib has the values of the InfiniBand architecture that every layer of this module speaks
// of: identifiers, states, types, and times in the encoding of the standard. RoCE and iWARP devices
// use the same values. The numbers are those of the kernel's rdma/ib_verbs.h and of the wire.
//
// The package does nothing with a device. Package uverbs has the values under the same names.
package ib

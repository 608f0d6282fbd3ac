// Package rstream tests package rsocket with programs of others as the peer: rdma-core's rstream and
// rcopy, and programs that know nothing of RDMA, with librspreload.so.
package rstream

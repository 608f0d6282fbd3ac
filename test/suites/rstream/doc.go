// Package rstream tests package rsocket with programs of others as the peer: rdma-core's rstream and
// rcopy, and programs without support for RDMA, with librspreload.so.
//
// Few web servers work with librspreload.so. That of rdma-core 44 (Debian 12) replaces accept, fcntl, poll, select and
// sendfile, but not accept4, fcntl64, sendfile64 or epoll. Of Debian's servers, webfsd calls sendfile64 and fcntl64, and
// lighttpd calls accept4. merecat accepts a connection, but it answers no request and does not sleep. civetweb has
// threads and calls accept, poll and send. It must be told not to call sendfile64.
//
// The newest rdma-core (65) and curl need preload_config in the folder of this package. To find out whether there is IPv6,
// curl opens and closes a datagram socket when it starts. librdmacm waits when it closes a datagram socket until all
// sends are done, but counts the sends of one that was never used as not done, so curl waits forever and
// does not connect. strace shows that its first thread is in a futex after the socket of AF_INET6 was made.
package rstream

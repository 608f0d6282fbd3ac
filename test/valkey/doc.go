// Package valkey has clients of Valkey and Redis run over RDMA connections of package cm/valkey, and
// programs of Valkey itself as the peer. It is a module of its own, so that programs that use the library
// do not inherit its dependencies.
package valkey

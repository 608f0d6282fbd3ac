// Package grpc has gRPC-Go run over RDMA connections. It is a module of its own, so that who uses
// the library does not inherit what gRPC needs.
package grpc

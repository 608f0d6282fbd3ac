// Package websocket has a WebSocket library run over RDMA connections. It is a module of its own, so
// that programs that use the library do not inherit its dependency.
package websocket

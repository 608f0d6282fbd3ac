// Package trace shows what a program does with the kernel's RDMA files.
//
//   - [Tracer] runs a program, or attaches to one, and yields a [Call] for every call that it makes to
//     /dev/infiniband/*: bytes and numbers as they were, which a [Recorder] writes to a file.
//   - [Decoder] turns a [Call] into an [Event], which has names and objects.
//   - [Event.Text] and [Event.JSON] print an event, and [Summary] adds events up.
//
// A [Tracer] needs Linux, on amd64 or arm64. Records can be read and decoded on every system.
//
// The names of objects, methods, attributes and fields come from the kernel's headers (ztable.go,
// made by tools/abigen). The file spec.go says what the headers do not: which attributes a method has,
// and which struct a command carries.
package trace

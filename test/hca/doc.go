// Package hca is a model of a network card that speaks RDMA: a ConnectX-5's virtual function,
// to which the kernel's own drivers (mlx5_core, mlx5_ib, mlx5e) and rdma-core's libmlx5 bind
// as they are. It is the referee of the mlx5 driver in this module, and shares no code with it.
package hca

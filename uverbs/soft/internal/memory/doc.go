// Package memory holds the registered memory of a software device: MRs and MWs by their keys, and
// checked access to what they stand for.
//
// Registered memory is an address range of this process. Every access looks the key up and checks
// protection domain, rights and bounds as rxe of Linux 7.2 does (drivers/infiniband/sw/rxe:
// rxe_mr.c, rxe_mw.c, rxe_odp.c, check_rkey of rxe_resp.c), in these points among others:
//
//   - The lkey and the rkey of an MR are equal, also without remote rights.
//   - An MR with windows cannot be deregistered: EINVAL.
//
// It differs from rxe where that is safer, or what the specification says:
//
//   - Keys are random, apart from the bit that tells windows from MRs.
//   - An access through a window must lie in the part of the MR that the window was bound to.
//   - Only the QP that has bound a window of type 2, or its peer, may invalidate it.
//   - A window, its MR and the QP that binds it must have the same PD. rxe of Linux 7.2 checks only
//     the PD of a type 2 window.
//   - Invalidating a window that is not bound fails. rxe follows a nil pointer.
//   - On-demand MRs work with any offset and any address for peers. rxe of Linux 7.2 loses the offset
//     of an access in its page, and needs the address of the process. Implicit ones (all memory)
//     are refused as rxe refuses them.
//   - Nothing is pinned. If the program unmaps memory under an MR, an access fails with MemoryGone.
//
// When Dereg, Rereg, Invalidate, Bind or Dealloc has returned, no access goes on that they forbid.
package memory

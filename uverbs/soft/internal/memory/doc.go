// Package memory holds the registered memory of a software device: MRs and MWs by their keys, and
// checked access to what they stand for.
//
// Registered memory is an address range of this process. Every access looks the key up and checks
// protection domain, rights and bounds as rxe of Linux 7.2 does (drivers/infiniband/sw/rxe:
// rxe_mr.c, rxe_mw.c, rxe_odp.c, check_rkey of rxe_resp.c), in these points among others:
//
//   - The lkey and the rkey of an MR are equal, also without remote rights.
//   - An access through a window must have the window's rights, but only the bounds of its MR.
//   - Any QP of the device may invalidate a window of type 2.
//   - An MR with windows cannot be deregistered: EINVAL.
//
// It differs from rxe where that is safer:
//
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

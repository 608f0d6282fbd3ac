/*
 * What test/bench does with our library, done with rdma-core's: an RC queue pair that is
 * connected with itself sends lots of small inline messages, and only the calls that post and
 * that poll are timed, and a system call that does next to nothing with a file.
 *
 *     calls DEVICE GID_INDEX SIZE COUNT ROUNDS
 *
 * It prints nanoseconds per call, of each round, as "POST POLL SYSTEM".
 */
#include "common.h"
#include <fcntl.h>

#define SETTLE 10000000 /* nanoseconds between posting and polling */

int main(int argc, char **argv)
{
	struct timed t = prepare(argc, argv);
	int size = t.size, count = t.count;
	struct ibv_cq *send_cq, *recv_cq;
	struct ibv_qp *qp;
	struct way way;

	send_cq = ibv_create_cq(t.ctx, count, NULL, NULL, 0);
	recv_cq = ibv_create_cq(t.ctx, count, NULL, NULL, 0);
	if (!send_cq || !recv_cq)
		fail("CQ");
	struct ibv_qp_init_attr init = {
		.send_cq = send_cq,
		.recv_cq = recv_cq,
		.qp_type = IBV_QPT_RC,
		.sq_sig_all = 1,
		.cap = { .max_send_wr = count, .max_recv_wr = count, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = size },
	};
	if (!(qp = ibv_create_qp(t.pd, &init)))
		fail("QP");
	find_way(&way, t.ctx, t.gid_index);
	connect_self(qp, &way);

	struct ibv_sge sge = { .addr = (uintptr_t)t.buf, .length = size, .lkey = t.mr->lkey };
	struct ibv_recv_wr recv = { .sg_list = &sge, .num_sge = 1 }, *bad_recv;
	struct ibv_send_wr send = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_INLINE }, *bad_send;

	for (int r = 0; r < t.rounds; r++) {
		struct ibv_wc wc;
		long long begin, post, poll, system;
		int missing = 0;

		for (int i = 0; i < count; i++)
			if (ibv_post_recv(qp, &recv, &bad_recv))
				fail("post receive");
		begin = now();
		for (int i = 0; i < count; i++) {
			send.wr_id = i;
			if (ibv_post_send(qp, &send, &bad_send))
				fail("post send");
		}
		post = now() - begin;
		drain(recv_cq, count);
		for (begin = now(); now() - begin < SETTLE;) /* then the completions of the sends are there, or about to be */
			;
		begin = now();
		for (int i = 0; i < count; i++)
			missing += ibv_poll_cq(send_cq, 1, &wc) != 1;
		poll = now() - begin;
		drain(send_cq, missing);
		if (missing) { /* what was timed was a wait */
			r--;
			continue;
		}
		begin = now();
		for (int i = 0; i < count; i++)
			if (fcntl(1, F_GETFD) < 0)
				fail("fcntl");
		system = now() - begin;
		printf("%.1f %.1f %.1f\n", (double)post / count, (double)poll / count, (double)system / count);
	}
	return 0;
}

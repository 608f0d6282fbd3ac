/*
 * Many objects of a kind, with rdma-core:
 *
 *     qps DEVICE GID_INDEX KIND COUNT MESSAGES
 *
 * COUNT RC queue pairs with one CQ (KIND is qps), as many with a CQ each (cqs), or one queue pair and COUNT
 * memory regions (mrs) are made; each queue pair is connected with itself. Then messages of 64 bytes go
 * over one queue pair, CQ or region after the other in turn, each sent, received and polled before the
 * next, of which the first over each is not timed; then all are destroyed. It prints the nanoseconds that it took to make a queue pair or a region,
 * those per message, and those to destroy one.
 */
#include "common.h"

#define SIZE 64

int main(int argc, char **argv)
{
	struct ibv_context *ctx;
	struct ibv_pd *pd;
	struct ibv_cq **cqs;
	struct ibv_qp **qps;
	struct ibv_mr **mrs;
	struct way way;
	long long begin, made, sent;
	static char buf[4096] __attribute__((aligned(4096)));

	if (argc != 6) {
		fprintf(stderr, "usage: %s DEVICE GID_INDEX qps|cqs|mrs COUNT MESSAGES\n", argv[0]);
		return 2;
	}
	int count = atoi(argv[4]), messages = atoi(argv[5]);
	int nqps = strcmp(argv[3], "mrs") ? count : 1, nmrs = strcmp(argv[3], "mrs") ? 1 : count;
	int ncqs = strcmp(argv[3], "cqs") ? 1 : count;

	memset(buf, 1, sizeof buf);
	qps = calloc(nqps, sizeof *qps);
	cqs = calloc(ncqs, sizeof *cqs);
	mrs = calloc(nmrs, sizeof *mrs);
	if (!(ctx = open_device(argv[1])))
		fail(argv[1]);
	if (!(pd = ibv_alloc_pd(ctx)))
		fail("PD");
	find_way(&way, ctx, atoi(argv[2]));
	begin = now();
	for (int i = 0; i < nmrs; i++) {
		if (!(mrs[i] = ibv_reg_mr(pd, buf, sizeof buf, IBV_ACCESS_LOCAL_WRITE)))
			fail("memory");
	}
	if (nmrs == 1)
		begin = now();
	for (int i = 0; i < nqps; i++) {
		if (i < ncqs && !(cqs[i] = ibv_create_cq(ctx, 4, NULL, NULL, 0)))
			fail("CQ");
		struct ibv_qp_init_attr init = {
			.send_cq = cqs[i % ncqs],
			.recv_cq = cqs[i % ncqs],
			.qp_type = IBV_QPT_RC,
			.sq_sig_all = 1,
			.cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
		};
		if (!(qps[i] = ibv_create_qp(pd, &init)))
			fail("QP");
		connect_self(qps[i], &way);
	}
	made = now() - begin;

	for (int i = 0; i < count + messages; i++) {
		if (i == count) /* each was used once */
			begin = now();
		struct ibv_qp *qp = qps[i % nqps];
		struct ibv_mr *mr = mrs[i % nmrs];
		struct ibv_sge from = { .addr = (uintptr_t)buf, .length = SIZE, .lkey = mr->lkey };
		struct ibv_sge to = { .addr = (uintptr_t)buf + 2048, .length = SIZE, .lkey = mr->lkey };
		struct ibv_recv_wr recv = { .sg_list = &to, .num_sge = 1 }, *bad_recv;
		struct ibv_send_wr send = { .sg_list = &from, .num_sge = 1, .opcode = IBV_WR_SEND }, *bad_send;

		if (ibv_post_recv(qp, &recv, &bad_recv))
			fail("post receive");
		if (ibv_post_send(qp, &send, &bad_send))
			fail("post send");
		drain(cqs[i % ncqs], 2);
	}
	sent = now() - begin;
	begin = now();
	for (int i = 0; i < nqps && nmrs == 1; i++)
		if (ibv_destroy_qp(qps[i]))
			fail("destroy QP");
	for (int i = 0; i < ncqs && ncqs > 1; i++)
		if (ibv_destroy_cq(cqs[i]))
			fail("destroy CQ");
	for (int i = 0; i < nmrs && nmrs > 1; i++)
		if (ibv_dereg_mr(mrs[i]))
			fail("deregister");
	printf("%.1f %.1f %.1f\n", (double)made / count, (double)sent / messages, (double)(now() - begin) / count);
	return 0;
}

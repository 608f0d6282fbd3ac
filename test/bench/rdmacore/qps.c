/*
 * Many objects, with rdma-core:
 *
 *     qps DEVICE GID_INDEX QPS CQS MRS MESSAGES
 *
 * So many MRs, CQs and RC queue pairs are made; the queue pairs take the CQs in turn and are connected with
 * themselves. Messages of 64 bytes go over one queue pair, CQ and MR after the other, each sent, received and
 * polled before the next, after one over each that is not timed. Then all are destroyed. It prints the
 * nanoseconds to make one object, per message, and to destroy one object. Objects that there are fewer of
 * than of the others do not count.
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
	long long begin, made = 0, sent, destroyed = 0;
	static char buf[4096] __attribute__((aligned(4096)));

	if (argc != 7) {
		fprintf(stderr, "usage: %s DEVICE GID_INDEX QPS CQS MRS MESSAGES\n", argv[0]);
		return 2;
	}
	int nqps = atoi(argv[3]), ncqs = atoi(argv[4]), nmrs = atoi(argv[5]), messages = atoi(argv[6]);
	int most = nqps;

	if (ncqs > most)
		most = ncqs;
	if (nmrs > most)
		most = nmrs;
	memset(buf, 1, sizeof buf);
	qps = calloc(nqps, sizeof *qps);
	cqs = calloc(ncqs, sizeof *cqs);
	mrs = calloc(nmrs, sizeof *mrs);
	if (!qps || !cqs || !mrs)
		fail("calloc");
	if (!(ctx = open_device(argv[1])))
		fail(argv[1]);
	if (!(pd = ibv_alloc_pd(ctx)))
		fail("PD");
	find_way(&way, ctx, atoi(argv[2]));

	begin = now();
	for (int i = 0; i < nmrs; i++)
		if (!(mrs[i] = ibv_reg_mr(pd, buf, sizeof buf, IBV_ACCESS_LOCAL_WRITE)))
			fail("MR");
	if (nmrs == most)
		made += now() - begin;
	begin = now();
	for (int i = 0; i < ncqs; i++)
		if (!(cqs[i] = ibv_create_cq(ctx, 4, NULL, NULL, 0)))
			fail("CQ");
	if (ncqs == most)
		made += now() - begin;
	begin = now();
	for (int i = 0; i < nqps; i++) {
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
	if (nqps == most)
		made += now() - begin;

	for (int i = 0; i < most + messages; i++) {
		if (i == most)
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
	for (int i = 0; i < nqps; i++)
		if (ibv_destroy_qp(qps[i]))
			fail("destroy QP");
	if (nqps == most)
		destroyed += now() - begin;
	begin = now();
	for (int i = 0; i < ncqs; i++)
		if (ibv_destroy_cq(cqs[i]))
			fail("destroy CQ");
	if (ncqs == most)
		destroyed += now() - begin;
	begin = now();
	for (int i = 0; i < nmrs; i++)
		if (ibv_dereg_mr(mrs[i]))
			fail("deregister");
	if (nmrs == most)
		destroyed += now() - begin;
	printf("%.1f %.1f %.1f\n", (double)made / most, (double)sent / messages, (double)destroyed / most);
	return 0;
}

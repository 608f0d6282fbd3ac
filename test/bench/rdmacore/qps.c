/*
 * Many queue pairs, with rdma-core: so many RC queue pairs with one CQ are made and connected, each
 * with itself; then messages of 64 bytes go over one after the other in turn, each sent, received
 * and polled before the next; then all are destroyed.
 *
 *     qps DEVICE GID_INDEX COUNT MESSAGES
 *
 * It prints the nanoseconds that it took to make and connect a queue pair, those per message, and those
 * to destroy a queue pair.
 */
#include "common.h"

int main(int argc, char **argv)
{
	struct ibv_context *ctx;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_qp **qps;
	struct ibv_mr *mr;
	struct way way;
	long long begin, made, sent;
	int count, messages;
	static char buf[4096] __attribute__((aligned(4096)));

	if (argc != 5) {
		fprintf(stderr, "usage: %s DEVICE GID_INDEX COUNT MESSAGES\n", argv[0]);
		return 2;
	}
	count = atoi(argv[3]);
	messages = atoi(argv[4]);
	if (!(ctx = open_device(argv[1])))
		fail(argv[1]);
	if (!(pd = ibv_alloc_pd(ctx)) || !(mr = ibv_reg_mr(pd, buf, sizeof buf, IBV_ACCESS_LOCAL_WRITE)))
		fail("memory");
	if (!(cq = ibv_create_cq(ctx, 4, NULL, NULL, 0)))
		fail("CQ");
	find_way(&way, ctx, atoi(argv[2]));
	qps = calloc(count, sizeof *qps);
	struct ibv_qp_init_attr init = {
		.send_cq = cq,
		.recv_cq = cq,
		.qp_type = IBV_QPT_RC,
		.sq_sig_all = 1,
		.cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	begin = now();
	for (int i = 0; i < count; i++) {
		if (!(qps[i] = ibv_create_qp(pd, &init)))
			fail("QP");
		connect_self(qps[i], &way);
	}
	made = now() - begin;

	struct ibv_sge from = { .addr = (uintptr_t)buf, .length = 64, .lkey = mr->lkey };
	struct ibv_sge to = { .addr = (uintptr_t)buf + 2048, .length = 64, .lkey = mr->lkey };
	struct ibv_recv_wr recv = { .sg_list = &to, .num_sge = 1 }, *bad_recv;
	struct ibv_send_wr send = { .sg_list = &from, .num_sge = 1, .opcode = IBV_WR_SEND }, *bad_send;

	begin = now();
	for (int i = 0; i < messages; i++) {
		struct ibv_qp *qp = qps[i % count];

		if (ibv_post_recv(qp, &recv, &bad_recv))
			fail("post receive");
		if (ibv_post_send(qp, &send, &bad_send))
			fail("post send");
		drain(cq, 2);
	}
	sent = now() - begin;
	begin = now();
	for (int i = 0; i < count; i++)
		if (ibv_destroy_qp(qps[i]))
			fail("destroy QP");
	printf("%.1f %.1f %.1f\n", (double)made / count, (double)sent / messages, (double)(now() - begin) / count);
	return 0;
}

/*
 * What test/bench does with our library, done with libefa: SENDs and READs by SRD from one queue pair of the
 * device to another, one by one and 16 at a time, posted by ibv_post_send and by ibv_wr_start and so on. Only the
 * calls that post and that poll are timed.
 *
 *     srd DEVICE GID_INDEX SIZE COUNT ROUNDS
 *
 * It prints nanoseconds per request, of each round, in the order of srdRows of test/bench/srd.go. ibv_post_send of
 * libefa has no READ, so that both figures of READs are by ibv_wr_start.
 */
#include "common.h"
#include <infiniband/efadv.h>

#define SETTLE 10000000 /* nanoseconds between posting and polling */
#define LIST 16
#define QKEY 0x1234567

static struct timed t;
static struct ibv_cq *send_cq, *recv_cq;
static struct ibv_qp *qp, *peer;
static struct ibv_ah *ah;
static struct ibv_sge sge;

static struct ibv_qp *make_qp(void)
{
	struct ibv_qp_init_attr_ex a = {
		.qp_type = IBV_QPT_DRIVER, .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, .pd = t.pd, .send_cq = send_cq, .recv_cq = recv_cq,
		.cap = { .max_send_wr = t.count, .max_send_sge = 1, .max_recv_wr = t.count, .max_recv_sge = 1 },
		.send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_RDMA_READ, .sq_sig_all = 1,
	};
	struct efadv_qp_init_attr efa = { .driver_qp_type = EFADV_QP_DRIVER_TYPE_SRD };
	struct ibv_qp *q = efadv_create_qp_ex(t.ctx, &a, &efa, sizeof(efa));
	struct ibv_qp_attr m = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY };

	if (!q)
		fail("QP");
	if (ibv_modify_qp(q, &m, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY))
		fail("INIT");
	m.qp_state = IBV_QPS_RTR;
	if (ibv_modify_qp(q, &m, IBV_QP_STATE))
		fail("RTR");
	m.qp_state = IBV_QPS_RTS;
	if (ibv_modify_qp(q, &m, IBV_QP_STATE | IBV_QP_SQ_PSN))
		fail("RTS");
	return q;
}

static void post(int n)
{
	struct ibv_send_wr wrs[LIST], *bad;

	for (int k = 0; k < n; k++)
		wrs[k] = (struct ibv_send_wr){
			.next = k < n - 1 ? &wrs[k + 1] : NULL, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
			.wr.ud = { .ah = ah, .remote_qpn = peer->qp_num, .remote_qkey = QKEY },
		};
	for (int i = 0; i < t.count; i += n) {
		for (int k = 0; k < n; k++)
			wrs[k].wr_id = i + k;
		if (ibv_post_send(qp, wrs, &bad))
			fail("post send");
	}
}

static void build(int n, int read)
{
	struct ibv_qp_ex *qx = ibv_qp_to_qp_ex(qp);

	for (int i = 0; i < t.count; i += n) {
		ibv_wr_start(qx);
		for (int k = 0; k < n; k++) {
			qx->wr_id = i + k;
			if (read)
				ibv_wr_rdma_read(qx, t.mr->rkey, sge.addr);
			else
				ibv_wr_send(qx);
			ibv_wr_set_ud_addr(qx, ah, peer->qp_num, QKEY);
			ibv_wr_set_sge(qx, sge.lkey, sge.addr, sge.length);
		}
		if (ibv_wr_complete(qx))
			fail("post");
	}
}

int main(int argc, char **argv)
{
	struct ibv_ah_attr a = { .is_global = 1, .port_num = 1 };

	t = prepare(argc, argv);
	ibv_dereg_mr(t.mr);
	t.mr = ibv_reg_mr(t.pd, t.buf, t.size, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ);
	send_cq = ibv_create_cq(t.ctx, t.count, NULL, NULL, 0);
	recv_cq = ibv_create_cq(t.ctx, t.count, NULL, NULL, 0);
	if (!t.mr || !send_cq || !recv_cq || ibv_query_gid(t.ctx, 1, 0, &a.grh.dgid) || !(ah = ibv_create_ah(t.pd, &a)))
		fail("MR, CQ, AH");
	qp = make_qp();
	peer = make_qp();
	sge = (struct ibv_sge){ .addr = (uintptr_t)t.buf, .length = t.size, .lkey = t.mr->lkey };
	struct ibv_recv_wr recv = { .sg_list = &sge, .num_sge = 1 }, *bad;

	for (int r = 0; r < t.rounds; r++) {
		double took[6], polls[2];
		int missing = 0;

		for (int i = 0; i < 6; i++) {
			struct ibv_wc wcs[LIST];
			long long begin, posted, polled;
			int n = i < 2 ? 1 : LIST, late = t.count;

			for (int k = 0; k < t.count && i < 4; k++)
				if (ibv_post_recv(peer, &recv, &bad))
					fail("post receive");
			begin = now();
			if (i == 0 || i == 2)
				post(n);
			else
				build(n, i >= 4);
			posted = now() - begin;
			if (i < 4)
				drain(recv_cq, t.count);
			for (begin = now(); now() - begin < SETTLE;) /* then the completions are there, or about to be */
				;
			begin = now();
			for (int k = 0; k < t.count; k += n) {
				int got = ibv_poll_cq(send_cq, n, wcs);

				if (got < 0)
					fail("poll");
				late -= got;
			}
			polled = now() - begin;
			drain(send_cq, late);
			missing += late;
			took[i] = (double)(posted + polled) / t.count;
			polls[i / 2 ? 1 : 0] = (double)polled / t.count;
		}
		if (missing) { /* what was timed was a wait */
			r--;
			continue;
		}
		for (int i = 0; i < 6; i++)
			printf("%.1f ", took[i]);
		printf("%.1f %.1f\n", polls[0], polls[1]);
	}
	return 0;
}

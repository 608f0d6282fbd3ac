/* Posts work requests of every kind, one after the other, from one queue pair to another of the
 * device and on the other: so that a modelled ConnectX can be told to print the entries that
 * libmlx5 makes of them. What the entries have of memory, keys and numbers is printed. See
 * "make golden", on InfiniBand, and mmio/mlx5/golden_test.go, which does the same in the same order. */
#include "common.h"

#define SIZE 65536

static struct ibv_cq *cq;

/* Waits for the completion of a work request, and drops those of receives. */
static void wait_for(uint64_t id, enum ibv_wc_status status)
{
	struct ibv_wc wc;

	for (;;) {
		int n = ibv_poll_cq(cq, 1, &wc);

		if (n < 0)
			fail("poll");
		if (n == 0 || wc.wr_id != id)
			continue;
		if (wc.status == status)
			return;
		fprintf(stderr, "work request %d: %s\n", (int)id, ibv_wc_status_str(wc.status));
		exit(1);
	}
}

static void post(struct ibv_qp *qp, struct ibv_send_wr *wr, enum ibv_wc_status status)
{
	static uint64_t id;
	struct ibv_send_wr *bad;

	wr->wr_id = ++id;
	wr->send_flags |= IBV_SEND_SIGNALED;
	if (ibv_post_send(qp, wr, &bad))
		fail("post");
	wait_for(id, status);
}

static struct ibv_qp *make_qp(struct ibv_pd *pd)
{
	struct ibv_qp_init_attr a = {
		.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 3, .max_recv_sge = 1, .max_inline_data = 100 },
	};
	struct ibv_qp *qp = ibv_create_qp(pd, &a);

	if (!qp)
		fail("QP");
	return qp;
}

/* connect_to allows neither READs nor atomics. */
static void join(struct ibv_qp *qp, uint32_t peer, const struct way *w)
{
	struct ibv_qp_attr a = {
		.qp_state = IBV_QPS_INIT, .port_num = 1,
		.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC,
	};

	if (ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS))
		fail("INIT");
	a = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTR, .path_mtu = w->port.active_mtu, .dest_qp_num = peer, .min_rnr_timer = 12,
		.max_dest_rd_atomic = 1, .ah_attr = { .dlid = w->port.lid, .port_num = 1 },
	};
	if (ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
			  IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER))
		fail("RTR");
	a = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .timeout = 16, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1 };
	if (ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
			  IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC))
		fail("RTS");
}

int main(int argc, char **argv)
{
	struct ibv_context *ctx = argc > 1 ? open_device(argv[1]) : NULL;
	struct ibv_pd *pd = ctx ? ibv_alloc_pd(ctx) : NULL;
	char *buf = aligned_alloc(4096, SIZE);
	uint64_t at = (uintptr_t)buf;
	struct ibv_mr *mr;
	struct ibv_mw *mw1, *mw2;
	struct ibv_qp *a, *b;
	struct way w;

	if (!pd || !buf || !(cq = ibv_create_cq(ctx, 128, NULL, NULL, 0)))
		fail("device");
	memset(buf, 0, SIZE);
	mr = ibv_reg_mr(pd, buf, SIZE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND);
	mw1 = ibv_alloc_mw(pd, IBV_MW_TYPE_1);
	mw2 = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
	if (!mr || !mw1 || !mw2)
		fail("MR and MWs");
	a = make_qp(pd);
	b = make_qp(pd);
	find_way(&w, ctx, 0);
	join(a, b->qp_num, &w);
	join(b, a->qp_num, &w);
	printf("qps %#x %#x memory %#llx lkey %#x windows %#x %#x\n", a->qp_num, b->qp_num, (unsigned long long)at, mr->lkey, mw1->rkey, mw2->rkey);
	fflush(stdout);

	for (int i = 0; i < 4; i++) { /* SEND, with an immediate, WRITE with one, SEND */
		struct ibv_sge to = { .addr = at + 20000, .length = 1000, .lkey = mr->lkey };
		struct ibv_recv_wr r = { .wr_id = 1000, .sg_list = &to, .num_sge = 1 }, *bad;

		if (ibv_post_recv(b, &r, &bad))
			fail("receive");
	}
	uint8_t data[64];
	for (int i = 0; i < 64; i++)
		data[i] = i * 7;
	struct ibv_sge s64 = { .addr = at, .length = 64, .lkey = mr->lkey }, s8 = { .addr = at, .length = 8, .lkey = mr->lkey };
	struct ibv_sge s16 = { .addr = at, .length = 16, .lkey = mr->lkey }, s_inline = { .addr = (uintptr_t)data, .length = 64 };
#define POST(qp, status, ...) do { struct ibv_send_wr wr = { __VA_ARGS__ }; post(qp, &wr, status); } while (0)
	POST(a, 0, .opcode = IBV_WR_SEND, .sg_list = &s64, .num_sge = 1);
	POST(a, 0, .opcode = IBV_WR_SEND_WITH_IMM, .imm_data = htobe32(0xabcd1234), .sg_list = &s_inline, .num_sge = 1, .send_flags = IBV_SEND_INLINE);
	POST(a, 0, .opcode = IBV_WR_RDMA_WRITE, .sg_list = &s64, .num_sge = 1, .send_flags = IBV_SEND_FENCE, .wr.rdma = { at + 40000, mr->rkey });
	POST(a, 0, .opcode = IBV_WR_RDMA_WRITE_WITH_IMM, .imm_data = htobe32(0xabcd1234), .sg_list = &s64, .num_sge = 1, .send_flags = IBV_SEND_SOLICITED, .wr.rdma = { at + 40000, mr->rkey });
	POST(a, 0, .opcode = IBV_WR_RDMA_READ, .sg_list = &s64, .num_sge = 1, .wr.rdma = { at + 40000, mr->rkey });
	POST(a, 0, .opcode = IBV_WR_ATOMIC_FETCH_AND_ADD, .sg_list = &s8, .num_sge = 1, .wr.atomic = { .remote_addr = at + 48000, .compare_add = 1, .rkey = mr->rkey });
	POST(a, 0, .opcode = IBV_WR_ATOMIC_CMP_AND_SWP, .sg_list = &s8, .num_sge = 1, .wr.atomic = { .remote_addr = at + 48000, .compare_add = 42, .swap = 77, .rkey = mr->rkey });
	POST(a, 0, .opcode = IBV_WR_SEND, .sg_list = &s16, .num_sge = 1);

	struct ibv_mw_bind bind = {
		.wr_id = 2000, .send_flags = IBV_SEND_SIGNALED,
		.bind_info = { .mr = mr, .addr = at + 50000, .length = 1000, .mw_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ },
	};
	if (ibv_bind_mw(b, mw1, &bind))
		fail("bind");
	wait_for(2000, 0);
	POST(a, 0, .opcode = IBV_WR_RDMA_WRITE, .sg_list = &s64, .num_sge = 1, .wr.rdma = { at + 50000, mw1->rkey });
	uint32_t key = ibv_inc_rkey(mw2->rkey);
	POST(b, 0, .opcode = IBV_WR_BIND_MW, .bind_mw = { .mw = mw2, .rkey = key,
		.bind_info = { .mr = mr, .addr = at + 52000, .length = 1000, .mw_access_flags = IBV_ACCESS_REMOTE_WRITE } });
	POST(a, 0, .opcode = IBV_WR_RDMA_WRITE, .sg_list = &s64, .num_sge = 1, .wr.rdma = { at + 52000, key });
	POST(b, 0, .opcode = IBV_WR_LOCAL_INV, .invalidate_rkey = key);
	POST(a, IBV_WC_REM_ACCESS_ERR, .opcode = IBV_WR_RDMA_WRITE, .sg_list = &s64, .num_sge = 1, .wr.rdma = { at + 52000, key });
	return 0;
}

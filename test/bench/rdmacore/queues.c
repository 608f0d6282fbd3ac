/* Posts to queues of every type, sends and receives, one after the other and each when what was
 * before is complete: so that a modelled ConnectX can be told to print the entries that libmlx5
 * makes of them. What the entries have of memory, keys and numbers is printed. See "make golden", on
 * InfiniBand, and mmio/mlx5/golden_queues_test.go, which does the same in the same order. */
#include "common.h"

#define SIZE 65536
#define QKEY 0x11111111

static struct ibv_context *ctx;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_mr *mr;
static struct way way;
static uint64_t at;

static void wait_for(int completions)
{
	struct ibv_wc wc;

	while (completions > 0) {
		int n = ibv_poll_cq(cq, 1, &wc);

		if (n < 0)
			fail("poll");
		if (n > 0 && wc.status != IBV_WC_SUCCESS) {
			fprintf(stderr, "completion: %s\n", ibv_wc_status_str(wc.status));
			exit(1);
		}
		completions -= n;
	}
}

static struct ibv_sge *piece(int n, const uint32_t *lengths)
{
	static struct ibv_sge sges[3];

	for (int i = 0; i < n; i++)
		sges[i] = (struct ibv_sge){ .addr = at + 1024 * i, .length = lengths[i], .lkey = mr->lkey };
	return sges;
}
#define SGES(...) .sg_list = piece(sizeof((uint32_t[]){ __VA_ARGS__ }) / 4, (uint32_t[]){ __VA_ARGS__ }), .num_sge = sizeof((uint32_t[]){ __VA_ARGS__ }) / 4
#define POST(qp, completions, ...) post(qp, completions, &(struct ibv_send_wr){ __VA_ARGS__ })
#define INLINE(n) .sg_list = &(struct ibv_sge){ .addr = (uintptr_t)data, .length = n }, .num_sge = 1, .send_flags = IBV_SEND_INLINE

/* Posts a send and waits for so many completions. */
static void post(struct ibv_qp *qp, int completions, struct ibv_send_wr *wr)
{
	struct ibv_send_wr *bad;

	wr->send_flags |= IBV_SEND_SIGNALED;
	if (ibv_post_send(qp, wr, &bad))
		fail("post");
	wait_for(completions);
}

/* Posts a receive of n entries of 1000 bytes each, to one of the two. */
static void receive(struct ibv_qp *qp, struct ibv_srq *srq, int n)
{
	struct ibv_sge sges[3];
	struct ibv_recv_wr r = { .sg_list = sges, .num_sge = n }, *bad;

	for (int i = 0; i < n; i++)
		sges[i] = (struct ibv_sge){ .addr = at + 20000 + 1000 * i, .length = 1000, .lkey = mr->lkey };
	if (srq ? ibv_post_srq_recv(srq, &r, &bad) : ibv_post_recv(qp, &r, &bad))
		fail("receive");
}

static struct ibv_qp *make_qp(enum ibv_qp_type type, struct ibv_srq *srq, struct ibv_xrcd *xrcd)
{
	struct ibv_qp_init_attr_ex a = {
		.qp_type = type, .comp_mask = IBV_QP_INIT_ATTR_PD, .pd = pd, .send_cq = cq, .recv_cq = cq, .srq = srq,
		.cap = { .max_send_wr = 16, .max_send_sge = 3, .max_inline_data = 100, .max_recv_wr = srq || xrcd ? 0 : 16, .max_recv_sge = srq || xrcd ? 0 : 3 },
	};

	if (type == IBV_QPT_XRC_SEND)
		a.recv_cq = NULL, a.cap.max_recv_wr = a.cap.max_recv_sge = 0;
	if (type == IBV_QPT_XRC_RECV)
		a = (struct ibv_qp_init_attr_ex){ .qp_type = type, .comp_mask = IBV_QP_INIT_ATTR_XRCD, .xrcd = xrcd };
	struct ibv_qp *qp = ibv_create_qp_ex(ctx, &a);

	if (!qp)
		fail("QP");
	return qp;
}

static void join(struct ibv_qp *qp, uint32_t peer)
{
	int rc = qp->qp_type != IBV_QPT_UC;
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE | (rc ? IBV_ACCESS_REMOTE_READ : 0) };

	if (ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS))
		fail("INIT");
	a = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTR, .path_mtu = way.port.active_mtu, .dest_qp_num = peer, .min_rnr_timer = 12,
		.max_dest_rd_atomic = 1, .ah_attr = { .dlid = way.port.lid, .port_num = 1 },
	};
	if (ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
			  (rc ? IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER : 0)))
		fail("RTR");
	a = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .timeout = 16, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1 };
	if (ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_SQ_PSN |
			  (rc ? IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC : 0)))
		fail("RTS");
}

static void ready_ud(struct ibv_qp *qp)
{
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY };

	if (ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY))
		fail("INIT");
	a.qp_state = IBV_QPS_RTR;
	if (ibv_modify_qp(qp, &a, IBV_QP_STATE))
		fail("RTR");
	a.qp_state = IBV_QPS_RTS;
	if (ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_SQ_PSN))
		fail("RTS");
}

int main(int argc, char **argv)
{
	char *buf = aligned_alloc(4096, SIZE);
	uint8_t data[128];

	ctx = argc > 1 ? open_device(argv[1]) : NULL;
	if (!ctx || !(pd = ibv_alloc_pd(ctx)) || !buf || !(cq = ibv_create_cq(ctx, 128, NULL, NULL, 0)))
		fail("device");
	memset(buf, 0, SIZE);
	at = (uintptr_t)buf;
	for (int i = 0; i < 128; i++)
		data[i] = i * 7 + 1;
	mr = ibv_reg_mr(pd, buf, SIZE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_MW_BIND);
	if (!mr)
		fail("MR");
	find_way(&way, ctx, 0);

	struct ibv_srq *srq = ibv_create_srq(pd, &(struct ibv_srq_init_attr){ .attr = { .max_wr = 3, .max_sge = 2 } });
	struct ibv_xrcd *xrcd = ibv_open_xrcd(ctx, &(struct ibv_xrcd_init_attr){ .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -1, .oflags = 0100 });
	struct ibv_srq *xsrq = !xrcd ? NULL : ibv_create_srq_ex(ctx, &(struct ibv_srq_init_attr_ex){
		.attr = { .max_wr = 3, .max_sge = 1 }, .srq_type = IBV_SRQT_XRC, .pd = pd, .xrcd = xrcd, .cq = cq,
		.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ });
	struct ibv_mw *mw = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
	uint32_t xsrqn;

	if (!srq || !xsrq || !mw || ibv_get_srq_num(xsrq, &xsrqn))
		fail("SRQs and MW");
	struct ibv_qp *uc = make_qp(IBV_QPT_UC, NULL, NULL), *uc_peer = make_qp(IBV_QPT_UC, NULL, NULL);
	struct ibv_qp *ud = make_qp(IBV_QPT_UD, NULL, NULL);
	struct ibv_qp *rc = make_qp(IBV_QPT_RC, NULL, NULL), *rc_peer = make_qp(IBV_QPT_RC, srq, NULL);
	struct ibv_qp *xrc = make_qp(IBV_QPT_XRC_SEND, NULL, NULL), *xrc_peer = make_qp(IBV_QPT_XRC_RECV, NULL, xrcd);

	join(uc, uc_peer->qp_num);
	join(uc_peer, uc->qp_num);
	join(rc, rc_peer->qp_num);
	join(rc_peer, rc->qp_num);
	join(xrc, xrc_peer->qp_num);
	join(xrc_peer, xrc->qp_num);
	ready_ud(ud);
	struct ibv_ah_attr way_ud = { .dlid = way.port.lid, .sl = 2, .static_rate = IBV_RATE_20_GBPS, .port_num = 1 };
	struct ibv_ah *plain = ibv_create_ah(pd, &way_ud);
	way_ud.is_global = 1;
	way_ud.grh = (struct ibv_global_route){ .dgid = way.gid, .flow_label = 0xabcde, .hop_limit = 64, .traffic_class = 3 };
	struct ibv_ah *global = ibv_create_ah(pd, &way_ud);

	if (!plain || !global)
		fail("AH");
	printf("uc %#x %#x ud %#x rc %#x %#x xrc %#x srqn %#x memory %#llx lkey %#x window %#x lid %#x gid ", uc->qp_num, uc_peer->qp_num, ud->qp_num,
	       rc->qp_num, rc_peer->qp_num, xrc->qp_num, xsrqn, (unsigned long long)at, mr->lkey, mw->rkey, way.port.lid);
	for (int i = 0; i < 16; i++)
		printf("%02x", way.gid.raw[i]);
	printf("\n");
	fflush(stdout);

	receive(uc_peer, NULL, 1);
	POST(uc, 2, .opcode = IBV_WR_SEND, SGES(8, 0, 16));
	POST(uc, 1, .opcode = IBV_WR_RDMA_WRITE, INLINE(28), .wr.rdma = { at + 40000, mr->rkey });
	receive(uc_peer, NULL, 2);
	POST(uc, 2, .opcode = IBV_WR_RDMA_WRITE_WITH_IMM, .imm_data = htobe32(0xabcd1234), SGES(64, 64), .wr.rdma = { at + 40000, mr->rkey });
	for (int i = 0; i < 70; i++) { /* two blocks each, one of which goes on at the start of the ring; receives go past its end */
		receive(uc_peer, NULL, 1 + i % 3);
		POST(uc, 2, .opcode = IBV_WR_SEND, INLINE(100));
	}

	receive(ud, NULL, 3);
	POST(ud, 2, .opcode = IBV_WR_SEND, SGES(64), .wr.ud = { plain, ud->qp_num, QKEY });
	receive(ud, NULL, 1);
	POST(ud, 2, .opcode = IBV_WR_SEND_WITH_IMM, .imm_data = htobe32(0xabcd1234), INLINE(20), .wr.ud = { global, ud->qp_num, QKEY });

	for (int i = 0; i < 6; i++) { /* each entry of the SRQ twice, in the order in which they came back */
		receive(NULL, srq, 1 + i % 2);
		POST(rc, 2, .opcode = IBV_WR_SEND, SGES(64, 64));
	}
	POST(rc, 1, .opcode = IBV_WR_RDMA_READ, SGES(64, 0, 64), .wr.rdma = { at + 40000, mr->rkey });
	uint32_t key = ibv_inc_rkey(mw->rkey);
	POST(rc_peer, 1, .opcode = IBV_WR_BIND_MW, .bind_mw = { .mw = mw, .rkey = key,
		.bind_info = { .mr = mr, .addr = at + 52000, .length = 1000, .mw_access_flags = IBV_ACCESS_REMOTE_WRITE } });
	receive(NULL, srq, 1);
	POST(rc, 2, .opcode = IBV_WR_SEND_WITH_INV, .invalidate_rkey = key, SGES(64));

	for (int i = 0; i < 5; i++) {
		receive(NULL, xsrq, 1);
		POST(xrc, 2, .opcode = IBV_WR_SEND, SGES(64), .qp_type.xrc.remote_srqn = xsrqn);
	}
	POST(xrc, 1, .opcode = IBV_WR_RDMA_WRITE, SGES(64, 64), .wr.rdma = { at + 40000, mr->rkey }, .qp_type.xrc.remote_srqn = xsrqn);
	receive(NULL, xsrq, 1);
	POST(xrc, 2, .opcode = IBV_WR_SEND_WITH_IMM, .imm_data = htobe32(0xabcd1234), INLINE(10), .qp_type.xrc.remote_srqn = xsrqn);
	return 0;
}

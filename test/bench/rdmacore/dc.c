/*
 * What test/bench does with our library, done with rdma-core's: an RC queue pair sends lots of small inline
 * messages to itself, and an initiator of DC to targets of its own device, to one of them and to two in turn.
 * Only the calls that post are timed.
 *
 *     dc DEVICE GID_INDEX SIZE COUNT ROUNDS
 *
 * It prints nanoseconds per message, of each round, as "RC ONE EACH".
 */
#include "common.h"
#include <infiniband/mlx5dv.h>

#define KEY 0x123456789abcdef
#define TARGETS 2

struct target {
	struct ibv_srq *srq;
	struct ibv_qp *qp;
};

static struct ibv_qp_attr attr(enum ibv_qp_state state, const struct way *w)
{
	return (struct ibv_qp_attr){
		.qp_state = state,
		.port_num = 1,
		.path_mtu = w->port.active_mtu,
		.min_rnr_timer = 12,
		.timeout = 16,
		.retry_cnt = 7,
		.rnr_retry = 7,
		.ah_attr = {
			.dlid = w->port.lid,
			.port_num = 1,
			.is_global = w->port.link_layer == IBV_LINK_LAYER_ETHERNET,
			.grh = { .dgid = w->gid, .sgid_index = w->gid_index, .hop_limit = 64 },
		},
	};
}

static void modify(struct ibv_qp *qp, enum ibv_qp_state state, const struct way *w, int mask)
{
	struct ibv_qp_attr a = attr(state, w);

	if (ibv_modify_qp(qp, &a, IBV_QP_STATE | mask))
		fail("modify");
}

static struct ibv_qp *initiator(struct ibv_pd *pd, struct ibv_cq *cq, const struct way *w, int size, int count)
{
	struct ibv_qp_init_attr_ex init = {
		.send_cq = cq,
		.recv_cq = cq,
		.qp_type = IBV_QPT_DRIVER,
		.sq_sig_all = 1,
		.cap = { .max_send_wr = count, .max_send_sge = 1, .max_inline_data = size },
		.pd = pd,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.send_ops_flags = IBV_QP_EX_WITH_SEND,
	};
	struct mlx5dv_qp_init_attr dv = {
		.comp_mask = MLX5DV_QP_INIT_ATTR_MASK_DC,
		.dc_init_attr = { .dc_type = MLX5DV_DCTYPE_DCI },
	};
	struct ibv_qp *qp = mlx5dv_create_qp(pd->context, &init, &dv);

	if (!qp)
		fail("DCI");
	modify(qp, IBV_QPS_INIT, w, IBV_QP_PKEY_INDEX | IBV_QP_PORT);
	modify(qp, IBV_QPS_RTR, w, IBV_QP_PATH_MTU);
	modify(qp, IBV_QPS_RTS, w, IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_SQ_PSN);
	return qp;
}

static struct target target(struct ibv_pd *pd, struct ibv_cq *cq, const struct way *w, int count)
{
	struct ibv_srq_init_attr srq = { .attr = { .max_wr = count, .max_sge = 1 } };
	struct target t = { .srq = ibv_create_srq(pd, &srq) };
	struct ibv_qp_init_attr_ex init = {
		.send_cq = cq,
		.recv_cq = cq,
		.srq = t.srq,
		.qp_type = IBV_QPT_DRIVER,
		.pd = pd,
		.comp_mask = IBV_QP_INIT_ATTR_PD,
	};
	struct mlx5dv_qp_init_attr dv = {
		.comp_mask = MLX5DV_QP_INIT_ATTR_MASK_DC,
		.dc_init_attr = { .dc_type = MLX5DV_DCTYPE_DCT, .dct_access_key = KEY },
	};

	if (!t.srq || !(t.qp = mlx5dv_create_qp(pd->context, &init, &dv)))
		fail("DCT");
	modify(t.qp, IBV_QPS_INIT, w, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
	modify(t.qp, IBV_QPS_RTR, w, IBV_QP_MIN_RNR_TIMER | IBV_QP_AV | IBV_QP_PATH_MTU);
	return t;
}

/* connected makes an RC queue pair that is connected with itself and receives by an SRQ. */
static struct ibv_qp_ex *connected(struct ibv_pd *pd, struct ibv_cq *send_cq, struct ibv_cq *recv_cq, struct ibv_srq *srq,
				   const struct way *w, int size, int count)
{
	struct ibv_qp_init_attr_ex init = {
		.send_cq = send_cq,
		.recv_cq = recv_cq,
		.srq = srq,
		.qp_type = IBV_QPT_RC,
		.sq_sig_all = 1,
		.cap = { .max_send_wr = count, .max_send_sge = 1, .max_inline_data = size },
		.pd = pd,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.send_ops_flags = IBV_QP_EX_WITH_SEND,
	};
	struct ibv_qp *qp = ibv_create_qp_ex(pd->context, &init);

	if (!qp)
		fail("RC queue pair");
	connect_self(qp, w);
	return ibv_qp_to_qp_ex(qp);
}

static void post(struct ibv_qp_ex *qp, struct mlx5dv_qp_ex *dc, struct ibv_ah *ah, const uint32_t *numbers, void *buf, int size, int count)
{
	ibv_wr_start(qp);
	for (int i = 0; i < count; i++) {
		qp->wr_id = i;
		ibv_wr_send(qp);
		mlx5dv_wr_set_dc_addr(dc, ah, numbers[i % TARGETS], KEY);
		ibv_wr_set_inline_data(qp, buf, size);
	}
	if (ibv_wr_complete(qp))
		fail("post send");
}

static void post_rc(struct ibv_qp_ex *qp, void *buf, int size, int count)
{
	ibv_wr_start(qp);
	for (int i = 0; i < count; i++) {
		qp->wr_id = i;
		ibv_wr_send(qp);
		ibv_wr_set_inline_data(qp, buf, size);
	}
	if (ibv_wr_complete(qp))
		fail("post send");
}

int main(int argc, char **argv)
{
	struct timed t = prepare(argc, argv);
	int size = t.size, count = t.count;
	struct ibv_cq *send_cq, *recv_cq;
	struct ibv_qp_ex *qp;
	struct mlx5dv_qp_ex *dc;
	struct target targets[TARGETS];
	struct ibv_ah *ah;
	struct way way;

	send_cq = ibv_create_cq(t.ctx, count, NULL, NULL, 0);
	recv_cq = ibv_create_cq(t.ctx, TARGETS * count, NULL, NULL, 0);
	if (!send_cq || !recv_cq)
		fail("CQ");
	find_way(&way, t.ctx, t.gid_index);
	for (int i = 0; i < TARGETS; i++)
		targets[i] = target(t.pd, recv_cq, &way, count);
	qp = ibv_qp_to_qp_ex(initiator(t.pd, send_cq, &way, size, count));
	dc = mlx5dv_qp_ex_from_ibv_qp_ex(qp);
	struct ibv_qp_attr a = attr(IBV_QPS_RTS, &way);
	if (!(ah = ibv_create_ah(t.pd, &a.ah_attr)))
		fail("AH");

	struct ibv_qp_ex *rc = connected(t.pd, send_cq, recv_cq, targets[0].srq, &way, size, count);
	struct ibv_sge sge = { .addr = (uintptr_t)t.buf, .length = size, .lkey = t.mr->lkey };
	struct ibv_recv_wr recv = { .sg_list = &sge, .num_sge = 1 }, *bad;

	for (int r = 0; r < t.rounds; r++) {
		double took[1 + TARGETS];

		for (int turns = 0; turns <= TARGETS; turns++) {
			uint32_t numbers[TARGETS];
			long long begin;

			for (int i = 0; i < TARGETS; i++)
				numbers[i] = targets[turns ? i % turns : 0].qp->qp_num;
			for (int i = 0; i < count; i++)
				if (ibv_post_srq_recv(targets[turns ? i % turns : 0].srq, &recv, &bad))
					fail("post receive");
			begin = now();
			if (turns)
				post(qp, dc, ah, numbers, t.buf, size, count);
			else
				post_rc(rc, t.buf, size, count);
			took[turns] = (double)(now() - begin) / count;
			drain(recv_cq, count);
			drain(send_cq, count);
		}
		printf("%.1f %.1f %.1f\n", took[0], took[1], took[2]);
	}
	return 0;
}

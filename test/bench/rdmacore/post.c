/*
 * What test/bench does with our library, done with rdma-core's: an RC queue pair that is
 * connected with itself sends lots of small inline messages, and only the calls that post and
 * that poll are timed.
 *
 *     post DEVICE GID_INDEX SIZE COUNT ROUNDS
 *
 * It prints nanoseconds per call, of each round, as "POST POLL".
 */
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define SETTLE 10000000 /* nanoseconds between posting and polling */

static void fail(const char *what)
{
	perror(what);
	exit(1);
}

static long long now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static struct ibv_context *open_device(const char *name)
{
	struct ibv_device **list = ibv_get_device_list(NULL);

	for (int i = 0; list && list[i]; i++)
		if (!strcmp(ibv_get_device_name(list[i]), name))
			return ibv_open_device(list[i]);
	return NULL;
}

static void connect_self(struct ibv_qp *qp, struct ibv_context *ctx, int gid_index)
{
	struct ibv_port_attr port;
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
	union ibv_gid gid;

	if (ibv_query_port(ctx, 1, &port) || ibv_query_gid(ctx, 1, gid_index, &gid))
		fail("port");
	if (ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS))
		fail("INIT");
	a = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTR,
		.path_mtu = port.active_mtu,
		.dest_qp_num = qp->qp_num,
		.min_rnr_timer = 12,
		.ah_attr = {
			.dlid = port.lid,
			.port_num = 1,
			.is_global = port.link_layer == IBV_LINK_LAYER_ETHERNET,
			.grh = { .dgid = gid, .sgid_index = gid_index, .hop_limit = 64 },
		},
	};
	if (ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
			  IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER))
		fail("RTR");
	a = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .timeout = 16, .retry_cnt = 7, .rnr_retry = 7 };
	if (ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
			  IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC))
		fail("RTS");
}

/* drain polls until there were so many completions. */
static void drain(struct ibv_cq *cq, int count)
{
	struct ibv_wc wc;

	for (int n = 0; n < count;) {
		int k = ibv_poll_cq(cq, 1, &wc);

		if (k < 0 || (k > 0 && wc.status != IBV_WC_SUCCESS)) {
			fprintf(stderr, "completion: %s\n", k < 0 ? "poll failed" : ibv_wc_status_str(wc.status));
			exit(1);
		}
		n += k;
	}
}

int main(int argc, char **argv)
{
	struct ibv_context *ctx;
	struct ibv_pd *pd;
	struct ibv_cq *send_cq, *recv_cq;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	int size, count, rounds;
	char *buf;

	if (argc != 6) {
		fprintf(stderr, "usage: %s DEVICE GID_INDEX SIZE COUNT ROUNDS\n", argv[0]);
		return 2;
	}
	size = atoi(argv[3]);
	count = atoi(argv[4]);
	rounds = atoi(argv[5]);
	if (!(ctx = open_device(argv[1])))
		fail(argv[1]);
	buf = calloc(1, size);
	if (!(pd = ibv_alloc_pd(ctx)) || !(mr = ibv_reg_mr(pd, buf, size, IBV_ACCESS_LOCAL_WRITE)))
		fail("memory");
	send_cq = ibv_create_cq(ctx, count, NULL, NULL, 0);
	recv_cq = ibv_create_cq(ctx, count, NULL, NULL, 0);
	if (!send_cq || !recv_cq)
		fail("CQ");
	struct ibv_qp_init_attr init = {
		.send_cq = send_cq,
		.recv_cq = recv_cq,
		.qp_type = IBV_QPT_RC,
		.sq_sig_all = 1,
		.cap = { .max_send_wr = count, .max_recv_wr = count, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = size },
	};
	if (!(qp = ibv_create_qp(pd, &init)))
		fail("QP");
	connect_self(qp, ctx, atoi(argv[2]));

	struct ibv_sge sge = { .addr = (uintptr_t)buf, .length = size, .lkey = mr->lkey };
	struct ibv_recv_wr recv = { .sg_list = &sge, .num_sge = 1 }, *bad_recv;
	struct ibv_send_wr send = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_INLINE }, *bad_send;

	for (int r = 0; r < rounds; r++) {
		struct ibv_wc wc;
		long long begin, post, poll;
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
		printf("%.1f %.1f\n", (double)post / count, (double)poll / count);
	}
	return 0;
}

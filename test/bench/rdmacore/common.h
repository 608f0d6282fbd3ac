/* What the programs beside ours have in common. */
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static inline void fail(const char *what)
{
	perror(what);
	exit(1);
}

static inline long long now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static inline struct ibv_context *open_device(const char *name)
{
	struct ibv_device **list = ibv_get_device_list(NULL);

	for (int i = 0; list && list[i]; i++)
		if (!strcmp(ibv_get_device_name(list[i]), name))
			return ibv_open_device(list[i]);
	return NULL;
}

/* The port and the GID of queue pairs that are connected with others of their device. */
struct way {
	struct ibv_port_attr port;
	union ibv_gid gid;
	int gid_index;
};

static inline void find_way(struct way *w, struct ibv_context *ctx, int gid_index)
{
	w->gid_index = gid_index;
	if (ibv_query_port(ctx, 1, &w->port) || ibv_query_gid(ctx, 1, gid_index, &w->gid))
		fail("port");
}

static inline void connect_to(struct ibv_qp *qp, uint32_t peer, const struct way *w)
{
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_INIT, .port_num = 1 };

	if (ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS))
		fail("INIT");
	a = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTR,
		.path_mtu = w->port.active_mtu,
		.dest_qp_num = peer,
		.min_rnr_timer = 12,
		.ah_attr = {
			.dlid = w->port.lid,
			.port_num = 1,
			.is_global = w->port.link_layer == IBV_LINK_LAYER_ETHERNET,
			.grh = { .dgid = w->gid, .sgid_index = w->gid_index, .hop_limit = 64 },
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

static inline void connect_self(struct ibv_qp *qp, const struct way *w)
{
	connect_to(qp, qp->qp_num, w);
}

/* drain polls until there were so many completions. */
static inline void drain(struct ibv_cq *cq, int count)
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

/* What programs that time calls are given, and their memory. */
struct timed {
	struct ibv_context *ctx;
	struct ibv_pd *pd;
	struct ibv_mr *mr;
	char *buf;
	int gid_index, size, count, rounds;
};

/* prepare reads DEVICE GID_INDEX SIZE COUNT ROUNDS. */
static inline struct timed prepare(int argc, char **argv)
{
	struct timed t;

	if (argc != 6) {
		fprintf(stderr, "usage: %s DEVICE GID_INDEX SIZE COUNT ROUNDS\n", argv[0]);
		exit(2);
	}
	t.gid_index = atoi(argv[2]);
	t.size = atoi(argv[3]);
	t.count = atoi(argv[4]);
	t.rounds = atoi(argv[5]);
	if (!(t.ctx = open_device(argv[1])))
		fail(argv[1]);
	t.buf = calloc(1, t.size);
	if (!(t.pd = ibv_alloc_pd(t.ctx)) || !(t.mr = ibv_reg_mr(t.pd, t.buf, t.size, IBV_ACCESS_LOCAL_WRITE)))
		fail("memory");
	return t;
}

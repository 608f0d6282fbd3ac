/*
 * Pingpong exchanges messages with another such program, or with test/pingpong. They connect over
 * their standard input and output.
 *
 *     pingpong DEVICE GID_INDEX [begin]
 */
#include <arpa/inet.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SIZE 64
#define COUNT 1000

struct end {
	struct ibv_context *ctx;
	struct ibv_pd *pd;
	char *buf;
	struct ibv_mr *mr;
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
};

static void check(int ok, const char *what)
{
	if (!ok) {
		perror(what);
		exit(1);
	}
}

static struct ibv_context *open_device(const char *name)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *ctx = NULL;

	check(list != NULL, "list devices");
	for (int i = 0; list[i] && !ctx; i++)
		if (!strcmp(ibv_get_device_name(list[i]), name))
			ctx = ibv_open_device(list[i]);
	ibv_free_device_list(list);
	check(ctx != NULL, "open device");
	return ctx;
}

static void create(struct end *e, const char *device)
{
	e->ctx = open_device(device);
	e->pd = ibv_alloc_pd(e->ctx);
	check(e->pd != NULL, "allocate PD");
	e->buf = aligned_alloc(4096, 4096);
	check(e->buf != NULL, "allocate memory");
	e->mr = ibv_reg_mr(e->pd, e->buf, 4096, IBV_ACCESS_LOCAL_WRITE);
	check(e->mr != NULL, "register memory");
	e->channel = ibv_create_comp_channel(e->ctx);
	check(e->channel != NULL, "create channel");
	e->cq = ibv_create_cq(e->ctx, 16, NULL, e->channel, 0);
	check(e->cq != NULL, "create CQ");
	struct ibv_qp_init_attr init = {
		.send_cq = e->cq,
		.recv_cq = e->cq,
		.qp_type = IBV_QPT_RC,
		.sq_sig_all = 1,
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	e->qp = ibv_create_qp(e->pd, &init);
	check(e->qp != NULL, "create QP");
}

/* exchange tells the peer about a queue pair, and returns what the peer tells about its own. */
static void exchange(uint32_t qpn, union ibv_gid *gid, int *mtu, uint32_t *peer_qpn, uint32_t *peer_psn)
{
	char text[512], addr[INET6_ADDRSTRLEN];
	int n, peer_mtu;

	inet_ntop(AF_INET6, gid, addr, sizeof(addr));
	n = snprintf(text, sizeof(text), "qpn=%u,psn=0,gid=%s,mtu=%d", qpn, addr, 128 << *mtu);
	printf("%c%c%s%c%c", n >> 8, n & 255, text, 0, 0); /* the format of QP.ConnectOver, without a note */
	fflush(stdout);
	n = getchar() << 8;
	n |= getchar();
	check(n > 0 && n < (int)sizeof(text) && fread(text, 1, n, stdin) == (size_t)n, "read from the peer");
	text[n] = 0;
	check(getchar() == 0 && getchar() == 0, "read the note");
	check(sscanf(text, "qpn=%u,psn=%u,gid=%45[^,],mtu=%d", peer_qpn, peer_psn, addr, &peer_mtu) == 4, "parse");
	check(inet_pton(AF_INET6, addr, gid) == 1, "parse GID");
	while (128 << *mtu > peer_mtu)
		(*mtu)--;
}

static void post_recv(struct end *e)
{
	struct ibv_sge sge = { (uintptr_t)e->buf + SIZE, SIZE, e->mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = 2, .sg_list = &sge, .num_sge = 1 }, *bad;

	check(!ibv_post_recv(e->qp, &wr, &bad), "post receive");
}

static void connect_qp(struct end *e, int gid_index)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
	struct ibv_port_attr port;
	union ibv_gid gid;
	uint32_t peer_qpn, peer_psn;

	check(!ibv_modify_qp(e->qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS), "INIT");
	post_recv(e); /* before the peer can send */
	check(!ibv_query_port(e->ctx, 1, &port), "query port");
	check(!ibv_query_gid(e->ctx, 1, gid_index, &gid), "query GID");
	int mtu = port.active_mtu;
	exchange(e->qp->qp_num, &gid, &mtu, &peer_qpn, &peer_psn);
	attr = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTR,
		.path_mtu = mtu,
		.dest_qp_num = peer_qpn,
		.rq_psn = peer_psn,
		.max_dest_rd_atomic = 1,
		.min_rnr_timer = 12,
		.ah_attr = {
			.is_global = 1,
			.port_num = 1,
			.grh = { .dgid = gid, .sgid_index = gid_index, .hop_limit = 64 },
		},
	};
	check(!ibv_modify_qp(e->qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
			     IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER), "RTR");
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 6, .rnr_retry = 7, .max_rd_atomic = 1 };
	check(!ibv_modify_qp(e->qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
			     IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC), "RTS");
	putchar(1); /* this side is ready */
	fflush(stdout);
	check(getchar() == 1, "wait until the peer is ready");
}

/* next waits for a completion. */
static void next(struct end *e, struct ibv_wc *wc)
{
	struct ibv_cq *of;
	void *context;
	int n = ibv_poll_cq(e->cq, 1, wc);

	while (n == 0) {
		check(!ibv_req_notify_cq(e->cq, 0), "arm CQ");
		if ((n = ibv_poll_cq(e->cq, 1, wc)) != 0)
			break; /* it was there before the CQ was armed */
		check(!ibv_get_cq_event(e->channel, &of, &context), "wait for CQ");
		ibv_ack_cq_events(of, 1);
		n = ibv_poll_cq(e->cq, 1, wc);
	}
	check(n > 0, "poll CQ");
}

static void post_send(struct end *e)
{
	struct ibv_sge sge = { (uintptr_t)e->buf, SIZE, e->mr->lkey };
	struct ibv_send_wr wr = { .wr_id = 1, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND }, *bad;

	check(!ibv_post_send(e->qp, &wr, &bad), "post send");
}

static void play(struct end *e, int begins)
{
	int sent = 0;

	if (begins) {
		post_send(e);
		sent++;
	}
	for (int done = 0; done < 2 * COUNT; done++) {
		struct ibv_wc wc;

		next(e, &wc);
		if (wc.status != IBV_WC_SUCCESS) {
			fprintf(stderr, "request %d: %s\n", (int)wc.wr_id, ibv_wc_status_str(wc.status));
			exit(1);
		}
		if (wc.wr_id == 1)
			continue;
		post_recv(e);
		if (sent < COUNT) {
			post_send(e);
			sent++;
		}
	}
	fprintf(stderr, "%d messages of %d bytes in each direction\n", COUNT, SIZE);
}

int main(int argc, char **argv)
{
	struct end e;

	if (argc < 3) {
		fprintf(stderr, "usage: pingpong DEVICE GID_INDEX [begin]\n");
		return 2;
	}
	create(&e, argv[1]);
	connect_qp(&e, atoi(argv[2]));
	play(&e, argc > 3);
	check(!ibv_destroy_qp(e.qp), "destroy QP");
	check(!ibv_destroy_cq(e.cq), "destroy CQ");
	check(!ibv_destroy_comp_channel(e.channel), "destroy channel");
	check(!ibv_dereg_mr(e.mr), "deregister memory");
	free(e.buf);
	check(!ibv_dealloc_pd(e.pd), "deallocate PD");
	check(!ibv_close_device(e.ctx), "close device");
	return 0;
}

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

/* exchange tells the peer about a queue pair, and returns what it tells about its own. */
static void exchange(struct ibv_qp *qp, union ibv_gid *gid, int *mtu, uint32_t *peer_qpn, uint32_t *peer_psn)
{
	char text[512], addr[INET6_ADDRSTRLEN];
	int n, peer_mtu, mtu_bytes = 128 << *mtu;

	inet_ntop(AF_INET6, gid, addr, sizeof(addr));
	n = snprintf(text, sizeof(text), "qpn=%u,psn=%u,gid=%s,mtu=%d", qp->qp_num, 0, addr, mtu_bytes);
	printf("%c%c%s%c%c", n >> 8, n & 255, text, 0, 0); /* and no note */
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

/* next waits for a completion. */
static void next(struct ibv_cq *cq, struct ibv_comp_channel *channel, struct ibv_wc *wc)
{
	struct ibv_cq *of;
	void *context;
	int n = ibv_poll_cq(cq, 1, wc);

	while (n == 0) {
		check(!ibv_req_notify_cq(cq, 0), "arm CQ");
		if ((n = ibv_poll_cq(cq, 1, wc)) != 0)
			break; /* it was there before the CQ was armed */
		check(!ibv_get_cq_event(channel, &of, &context), "wait for CQ");
		ibv_ack_cq_events(of, 1);
		n = ibv_poll_cq(cq, 1, wc);
	}
	check(n > 0, "poll CQ");
}

int main(int argc, char **argv)
{
	check(argc >= 3, "usage: pingpong DEVICE GID_INDEX [begin]");
	struct ibv_context *ctx = open_device(argv[1]);
	struct ibv_pd *pd = ibv_alloc_pd(ctx);
	check(pd != NULL, "allocate PD");
	char *buf = aligned_alloc(4096, 4096);
	check(buf != NULL, "allocate memory");
	struct ibv_mr *mr = ibv_reg_mr(pd, buf, 4096, IBV_ACCESS_LOCAL_WRITE);
	check(mr != NULL, "register memory");
	struct ibv_comp_channel *channel = ibv_create_comp_channel(ctx);
	check(channel != NULL, "create channel");
	struct ibv_cq *cq = ibv_create_cq(ctx, 16, NULL, channel, 0);
	check(cq != NULL, "create CQ");
	struct ibv_qp_init_attr init = {
		.send_cq = cq,
		.recv_cq = cq,
		.qp_type = IBV_QPT_RC,
		.sq_sig_all = 1,
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	check(qp != NULL, "create QP");

	/* Connect. The receive is posted before the peer can send. */
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
	check(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS), "INIT");
	struct ibv_sge in = { (uintptr_t)buf + SIZE, SIZE, mr->lkey }, out = { (uintptr_t)buf, SIZE, mr->lkey };
	struct ibv_recv_wr recv = { .wr_id = 2, .sg_list = &in, .num_sge = 1 }, *bad_recv;
	struct ibv_send_wr send = { .wr_id = 1, .sg_list = &out, .num_sge = 1, .opcode = IBV_WR_SEND }, *bad_send;
	check(!ibv_post_recv(qp, &recv, &bad_recv), "post receive");

	struct ibv_port_attr port;
	union ibv_gid gid;
	check(!ibv_query_port(ctx, 1, &port), "query port");
	check(!ibv_query_gid(ctx, 1, atoi(argv[2]), &gid), "query GID");
	int mtu = port.active_mtu;
	uint32_t peer_qpn, peer_psn;
	exchange(qp, &gid, &mtu, &peer_qpn, &peer_psn);
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
			.grh = { .dgid = gid, .sgid_index = atoi(argv[2]), .hop_limit = 64 },
		},
	};
	check(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
			     IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER), "RTR");
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 6, .rnr_retry = 7, .max_rd_atomic = 1 };
	check(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
			     IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC), "RTS");
	putchar(1); /* this side is ready */
	fflush(stdout);
	check(getchar() == 1, "wait until the peer is ready");

	/* Play. */
	int sent = 0, done = 0;
	if (argc > 3) {
		check(!ibv_post_send(qp, &send, &bad_send), "post send");
		sent++;
	}
	for (; done < 2 * COUNT; done++) {
		struct ibv_wc wc;

		next(cq, channel, &wc);
		if (wc.status != IBV_WC_SUCCESS) {
			fprintf(stderr, "request %d: %s\n", (int)wc.wr_id, ibv_wc_status_str(wc.status));
			return 1;
		}
		if (wc.wr_id == send.wr_id)
			continue;
		check(!ibv_post_recv(qp, &recv, &bad_recv), "post receive");
		if (sent < COUNT) {
			check(!ibv_post_send(qp, &send, &bad_send), "post send");
			sent++;
		}
	}
	fprintf(stderr, "%d messages of %d bytes in each direction\n", COUNT, SIZE);

	/* Close. */
	check(!ibv_destroy_qp(qp), "destroy QP");
	check(!ibv_destroy_cq(cq), "destroy CQ");
	check(!ibv_destroy_comp_channel(channel), "destroy channel");
	check(!ibv_dereg_mr(mr), "deregister memory");
	free(buf);
	check(!ibv_dealloc_pd(pd), "deallocate PD");
	check(!ibv_close_device(ctx), "close device");
	return 0;
}

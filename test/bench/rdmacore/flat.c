/*
 * What BenchmarkQPs of test/suites/conformance does with our library, done with rdma-core's: lists of
 * messages of 64 bytes over connections that share a CQ, over each that is used in turn, many
 * connections of one device beside one of another.
 *
 *     flat DEVICE OTHER GID_INDEX PAIRS USED LIST
 *
 * For each line that it reads it sends PAIRS lists over USED of those of DEVICE and as many over the pair
 * of OTHER, the latter first if the line begins with 1, and prints the nanoseconds of both, as
 * "MANY ONE".
 */
#include "common.h"

#define SIZE 64

struct connections {
	struct ibv_context *ctx;
	struct ibv_cq *cq;
	struct ibv_qp *(*qps)[2];
	struct ibv_sge from, to;
	struct ibv_send_wr *sends;
	struct ibv_recv_wr *recvs;
	struct ibv_wc *wcs;
	int pairs, used, list, next;
};

static void open_connections(struct connections *c, const char *device, int gid_index, int pairs, int used, int list)
{
	struct ibv_pd *pd;
	struct ibv_mr *mr;
	struct way way;
	char *buf = aligned_alloc(4096, 4096);

	if (!(c->ctx = open_device(device)))
		fail(device);
	if (!(pd = ibv_alloc_pd(c->ctx)) || !(mr = ibv_reg_mr(pd, buf, 4096, IBV_ACCESS_LOCAL_WRITE)))
		fail("memory");
	find_way(&way, c->ctx, gid_index);
	c->pairs = pairs;
	c->used = used;
	c->list = list;
	c->next = 0;
	c->qps = calloc(pairs, sizeof(*c->qps));
	c->sends = calloc(list, sizeof(*c->sends));
	c->recvs = calloc(list, sizeof(*c->recvs));
	c->wcs = calloc(2 * list, sizeof(*c->wcs));
	if (!(c->cq = ibv_create_cq(c->ctx, 2 * list, NULL, NULL, 0)))
		fail("CQ");
	for (int i = 0; i < pairs; i++) {
		for (int side = 0; side < 2; side++) {
			struct ibv_qp_init_attr init = {
				.send_cq = c->cq,
				.recv_cq = c->cq,
				.qp_type = IBV_QPT_RC,
				.cap = { .max_send_wr = list, .max_recv_wr = list, .max_send_sge = 1, .max_recv_sge = 1 },
			};

			if (!(c->qps[i][side] = ibv_create_qp(pd, &init)))
				fail("QP");
		}
		for (int side = 0; side < 2; side++)
			connect_to(c->qps[i][side], c->qps[i][!side]->qp_num, &way);
	}
	c->from = (struct ibv_sge){ .addr = (uintptr_t)buf, .length = SIZE, .lkey = mr->lkey };
	c->to = (struct ibv_sge){ .addr = (uintptr_t)buf + 2048, .length = SIZE, .lkey = mr->lkey };
	for (int i = 0; i < list; i++) {
		c->sends[i] = (struct ibv_send_wr){ .wr_id = i, .sg_list = &c->from, .num_sge = 1, .opcode = IBV_WR_SEND,
			.send_flags = IBV_SEND_SIGNALED, .next = i + 1 < list ? &c->sends[i + 1] : NULL };
		c->recvs[i] = (struct ibv_recv_wr){ .sg_list = &c->to, .num_sge = 1, .next = i + 1 < list ? &c->recvs[i + 1] : NULL };
	}
}

/* lot sends so many lists, a list over each connection in turn. */
static long long lot(struct connections *c, int lists)
{
	long long begin = now();

	for (int i = 0; i < lists; i++) {
		struct ibv_qp **pair = c->qps[c->next];
		struct ibv_send_wr *bad_send;
		struct ibv_recv_wr *bad_recv;

		c->next = (c->next + 1) % c->used;
		if (ibv_post_recv(pair[1], c->recvs, &bad_recv))
			fail("post receives");
		if (ibv_post_send(pair[0], c->sends, &bad_send))
			fail("post sends");
		for (int done = 0; done < 2 * c->list;) {
			int n = ibv_poll_cq(c->cq, 2 * c->list, c->wcs);

			if (n < 0)
				fail("poll");
			for (int k = 0; k < n; k++)
				if (c->wcs[k].status != IBV_WC_SUCCESS) {
					fprintf(stderr, "completion: %s\n", ibv_wc_status_str(c->wcs[k].status));
					exit(1);
				}
			done += n;
		}
	}
	return now() - begin;
}

int main(int argc, char **argv)
{
	static struct connections sides[2];
	char line[16];

	if (argc != 7) {
		fprintf(stderr, "usage: %s DEVICE OTHER GID_INDEX PAIRS USED LIST\n", argv[0]);
		return 2;
	}
	int pairs = atoi(argv[4]), used = atoi(argv[5]), list = atoi(argv[6]);

	open_connections(&sides[0], argv[1], atoi(argv[3]), pairs, used, list);
	open_connections(&sides[1], argv[2], atoi(argv[3]), 1, 1, list);
	lot(&sides[0], pairs); /* what is done once */
	lot(&sides[1], pairs);
	while (fgets(line, sizeof(line), stdin)) {
		long long took[2];

		for (int k = 0; k < 2; k++) {
			int which = (k + (line[0] == '1')) % 2;

			took[which] = lot(&sides[which], pairs);
		}
		printf("%lld %lld\n", took[0], took[1]);
		fflush(stdout);
	}
	return 0;
}

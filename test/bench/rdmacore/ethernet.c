/* What is only on Ethernet, so that a modelled ConnectX can be told to print the entries that libmlx5
 * makes of it: frames from memory and from the work request, as the card is and as one that wants
 * headers in work requests; datagrams with an address handle; and a CQ that changes its size. What the
 * entries have of memory, keys and numbers is printed. See "make golden", on RoCE, and
 * mmio/mlx5/golden_ethernet_test.go, which does the same in the same order. */
#include "common.h"
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#define SIZE 65536
#define QKEY 0x11111111

static uint8_t frame[128];
static char *buf;

/* What the card's test bench is told: test/hca/bench.go. */
static void bench(const char *device, const char *text)
{
	char path[128];

	snprintf(path, sizeof(path), "/sys/class/infiniband/%s/device/resource0", device);
	int fd = open(path, O_RDWR);
	volatile char *area = fd < 0 ? MAP_FAILED : mmap(NULL, 0x1000, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0x80000);

	if (area == MAP_FAILED)
		fail("test bench");
	int n = strlen(text);

	for (int i = 0; i < n; i++)
		area[8 + i] = text[i];
	area[1] = n;
	area[2] = 0;
	area[0] = 1;
	if (area[8] != 'o' || area[9] != 'k') {
		fprintf(stderr, "the test bench did not take %s\n", text);
		exit(1);
	}
}

struct side {
	struct ibv_context *ctx;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_mr *mr;
};

static struct side open_side(const char *device)
{
	struct side s = { .ctx = open_device(device) };

	if (!s.ctx || !(s.pd = ibv_alloc_pd(s.ctx)) || !(s.cq = ibv_create_cq(s.ctx, 100, NULL, NULL, 0)) ||
	    !(s.mr = ibv_reg_mr(s.pd, buf, SIZE, IBV_ACCESS_LOCAL_WRITE)))
		fail("device");
	return s;
}

static struct ibv_qp *make_qp(struct side *s, enum ibv_qp_type type)
{
	struct ibv_qp_init_attr a = {
		.qp_type = type, .send_cq = s->cq, .recv_cq = s->cq,
		.cap = { .max_send_wr = 16, .max_send_sge = 3, .max_inline_data = 100, .max_recv_wr = 16, .max_recv_sge = 3 },
	};
	struct ibv_qp *qp = ibv_create_qp(s->pd, &a);
	int ud = type == IBV_QPT_UD;
	struct ibv_qp_attr m = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY };

	if (!qp || ibv_modify_qp(qp, &m, IBV_QP_STATE | IBV_QP_PORT | (ud ? IBV_QP_PKEY_INDEX | IBV_QP_QKEY : 0)))
		fail("INIT");
	m.qp_state = IBV_QPS_RTR;
	if (ibv_modify_qp(qp, &m, IBV_QP_STATE))
		fail("RTR");
	m.qp_state = IBV_QPS_RTS;
	if (ibv_modify_qp(qp, &m, IBV_QP_STATE | (ud ? IBV_QP_SQ_PSN : 0)))
		fail("RTS");
	return qp;
}

static void post(struct side *s, struct ibv_qp *qp, struct ibv_send_wr *wr)
{
	struct ibv_send_wr *bad;

	wr->opcode = IBV_WR_SEND;
	wr->send_flags |= IBV_SEND_SIGNALED;
	if (ibv_post_send(qp, wr, &bad))
		fail("post");
	drain(s->cq, 1);
}

/* Frames: as a whole, in two and in three pieces, and inline in two sizes; and so often that one goes on
 * at the start of the ring. */
static void frames(struct side *s, struct ibv_qp *qp)
{
	uint32_t lkey = s->mr->lkey;
	uint64_t at = (uintptr_t)buf;
	struct ibv_sge whole = { at, 128, lkey }, two[] = { { at, 14, lkey }, { at + 14, 100, lkey } },
		three[] = { { at, 10, lkey }, { at + 10, 10, lkey }, { at + 20, 60, lkey } },
		inlined = { (uintptr_t)frame, 100, 0 }, shorter = { (uintptr_t)frame, 60, 0 };

	post(s, qp, &(struct ibv_send_wr){ .sg_list = &whole, .num_sge = 1 });
	post(s, qp, &(struct ibv_send_wr){ .sg_list = two, .num_sge = 2 });
	post(s, qp, &(struct ibv_send_wr){ .sg_list = three, .num_sge = 3 });
	post(s, qp, &(struct ibv_send_wr){ .sg_list = &shorter, .num_sge = 1, .send_flags = IBV_SEND_INLINE });
	for (int i = 0; i < 40; i++)
		post(s, qp, &(struct ibv_send_wr){ .sg_list = &inlined, .num_sge = 1, .send_flags = IBV_SEND_INLINE });
}

int main(int argc, char **argv)
{
	const char *device = argc > 1 ? argv[1] : "mlx5_0";
	struct way way;
	union ibv_gid gid;

	buf = aligned_alloc(4096, SIZE);
	memset(buf, 0, SIZE);
	for (int i = 0; i < 128; i++)
		frame[i] = i * 7 + 1;
	frame[0] = 2; /* to one, who is not there */
	memcpy(buf, frame, 128);

	struct side plain = open_side(device);
	struct ibv_qp *raw = make_qp(&plain, IBV_QPT_RAW_PACKET), *ud = make_qp(&plain, IBV_QPT_UD);

	/* The last GID of an IPv4 address is RoCE v2's. */
	way.gid_index = -1;
	for (int i = 0; !ibv_query_gid(plain.ctx, 1, i, &gid); i++)
		if (!gid.global.subnet_prefix && gid.raw[10] == 0xff && gid.raw[11] == 0xff)
			way.gid_index = i;
	find_way(&way, plain.ctx, way.gid_index);
	struct ibv_ah_attr a = { .is_global = 1, .port_num = 1, .sl = 3, .grh = {
		.dgid = way.gid, .sgid_index = way.gid_index, .hop_limit = 64, .traffic_class = 12, .flow_label = 0xabcde } };
	struct ibv_ah *ah = ibv_create_ah(plain.pd, &a);

	if (!ah || ibv_resize_cq(plain.cq, 300))
		fail("AH and RESIZE_CQ");
	bench(device, "headers inline");
	struct side headers = open_side(device);
	struct ibv_qp *inlined = make_qp(&headers, IBV_QPT_RAW_PACKET);

	printf("raw %#x headers %#x ud %#x memory %#llx lkeys %#x %#x index %d gid ", raw->qp_num, inlined->qp_num, ud->qp_num,
	       (unsigned long long)(uintptr_t)buf, plain.mr->lkey, headers.mr->lkey, way.gid_index);
	for (int i = 0; i < 16; i++)
		printf("%02x", way.gid.raw[i]);
	printf("\n");
	fflush(stdout);
	frames(&plain, raw);
	frames(&headers, inlined);
	struct ibv_sge whole = { (uintptr_t)buf, 64, plain.mr->lkey };
	post(&plain, ud, &(struct ibv_send_wr){ .sg_list = &whole, .num_sge = 1, .wr.ud = { ah, ud->qp_num, QKEY } });
	return 0;
}

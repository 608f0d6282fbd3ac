/* Posts work requests of every kind, on queues of both widths, to another queue pair of the device:
 * so that a modelled EFA can be told to print what libefa writes. What that has of memory, keys and
 * numbers is printed. With "list" it posts one long list. See "make golden", and
 * mmio/efa/golden_test.go, which does the same in the same order. */
#include "common.h"
#include <endian.h>
#include <infiniband/efadv.h>

#define SIZE (1 << 18)
#define QKEY 0x1234567

static struct ibv_context *ctx;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_mr *mr;
static struct ibv_ah *ah;
static uint64_t at;
static struct ibv_qp *peer;
static struct ibv_qp_ex *qx;
static uint64_t id;

static struct ibv_qp *make_qp(int inline_data, int depth, int receives, int sges)
{
	struct ibv_qp_init_attr_ex a = {
		.qp_type = IBV_QPT_DRIVER, .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, .pd = pd, .send_cq = cq, .recv_cq = cq,
		.cap = { .max_send_wr = depth, .max_send_sge = 2, .max_inline_data = inline_data, .max_recv_wr = receives, .max_recv_sge = sges },
		.send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_RDMA_WRITE |
				  IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM,
		.sq_sig_all = 1,
	};
	struct efadv_qp_init_attr efa = { .driver_qp_type = EFADV_QP_DRIVER_TYPE_SRD, .flags = inline_data > 32 ? EFADV_QP_FLAGS_INLINE_WRITE : 0 };
	struct ibv_qp *qp = efadv_create_qp_ex(ctx, &a, &efa, sizeof(efa));
	struct ibv_qp_attr m = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY };

	if (!qp)
		fail("QP");
	if (ibv_modify_qp(qp, &m, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY))
		fail("INIT");
	m.qp_state = IBV_QPS_RTR;
	if (ibv_modify_qp(qp, &m, IBV_QP_STATE))
		fail("RTR");
	m.qp_state = IBV_QPS_RTS;
	if (ibv_modify_qp(qp, &m, IBV_QP_STATE | IBV_QP_SQ_PSN))
		fail("RTS");
	return qp;
}

/* Posts one receive of pieces that are one behind the other. */
static void receive(struct ibv_qp *qp, int n, const uint32_t *lengths)
{
	struct ibv_sge sges[3];
	struct ibv_recv_wr r = { .wr_id = ++id, .sg_list = sges, .num_sge = n }, *bad;

	for (int i = 0; i < n; i++)
		sges[i] = (struct ibv_sge){ .addr = at + 65536 + 4096 * i, .length = lengths[i], .lkey = mr->lkey };
	if (ibv_post_recv(qp, &r, &bad))
		fail("receive");
}
#define RECEIVE(qp, ...) receive(qp, sizeof((uint32_t[]){ __VA_ARGS__ }) / 4, (uint32_t[]){ __VA_ARGS__ })

static void begin(struct ibv_qp *qp)
{
	qx = ibv_qp_to_qp_ex(qp);
	ibv_wr_start(qx);
}

static void end(void)
{
	if (ibv_wr_complete(qx))
		fail("post");
}

/* Waits for so many sends. */
static void wait_for(int sends)
{
	struct ibv_wc wc;

	while (sends > 0) {
		int n = ibv_poll_cq(cq, 1, &wc);

		if (n < 0)
			fail("poll");
		if (n > 0 && wc.status != IBV_WC_SUCCESS) {
			fprintf(stderr, "completion: %s\n", ibv_wc_status_str(wc.status));
			exit(1);
		}
		sends -= n > 0 && !(wc.opcode & IBV_WC_RECV);
	}
}

static struct ibv_sge *piece(int n, const uint32_t *lengths)
{
	static struct ibv_sge sges[2];

	for (int i = 0; i < n; i++)
		sges[i] = (struct ibv_sge){ .addr = at + 1024 * i, .length = lengths[i], .lkey = mr->lkey };
	return sges;
}
#define SGES(...) to(), ibv_wr_set_sge_list(qx, sizeof((uint32_t[]){ __VA_ARGS__ }) / 4, piece(sizeof((uint32_t[]){ __VA_ARGS__ }) / 4, (uint32_t[]){ __VA_ARGS__ }))
#define INLINE(n) to(), ibv_wr_set_inline_data(qx, data, n)

static void to(void)
{
	ibv_wr_set_ud_addr(qx, ah, peer->qp_num, QKEY);
	qx->wr_id = ++id;
}

/* One list of ten sends. */
static void list(struct ibv_qp *qp)
{
	struct ibv_send_wr wrs[10] = {}, *bad;
	struct ibv_sge sges[10];

	for (int i = 0; i < 10; i++) {
		sges[i] = (struct ibv_sge){ .addr = at + 100 * i, .length = 100 + i, .lkey = mr->lkey };
		wrs[i] = (struct ibv_send_wr){
			.wr_id = ++id, .next = i < 9 ? &wrs[i + 1] : NULL, .sg_list = &sges[i], .num_sge = 1, .opcode = IBV_WR_SEND,
			.send_flags = IBV_SEND_SIGNALED, .wr.ud = { .ah = ah, .remote_qpn = peer->qp_num, .remote_qkey = QKEY },
		};
	}
	if (ibv_post_send(qp, wrs, &bad))
		fail("list");
	wait_for(10);
}

int main(int argc, char **argv)
{
	char *buf = aligned_alloc(4096, SIZE);
	uint8_t data[80];
	struct ibv_qp *narrow, *wide;
	struct efadv_ah_attr number;
	struct ibv_ah_attr a = { .is_global = 1, .port_num = 1 };

	ctx = argc > 1 ? open_device(argv[1]) : NULL;
	if (!ctx || !(pd = ibv_alloc_pd(ctx)) || !buf || !(cq = ibv_create_cq(ctx, 256, NULL, NULL, 0)))
		fail("device");
	memset(buf, 0, SIZE);
	at = (uintptr_t)buf;
	for (int i = 0; i < 80; i++)
		data[i] = i * 7 + 1;
	mr = ibv_reg_mr(pd, buf, SIZE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);
	if (!mr || ibv_query_gid(ctx, 1, 0, &a.grh.dgid) || !(ah = ibv_create_ah(pd, &a)) || efadv_query_ah(ah, &number, sizeof(number)))
		fail("MR, AH");
	peer = make_qp(0, 16, 64, 1);
	for (int i = 0; i < 64; i++)
		RECEIVE(peer, 8192);
	narrow = make_qp(32, 16, 8, 3);
	printf("memory %#lx lkey %#x rkey %#x ah %u peer %#x narrow %#x", (long)at, mr->lkey, mr->rkey, number.ahn, peer->qp_num, narrow->qp_num);
	if (argc > 2) {
		printf(" wide 0x0\n");
		list(narrow);
		return 0;
	}
	wide = make_qp(80, 8, 8, 1);
	printf(" wide %#x\n", wide->qp_num);

	RECEIVE(narrow, 1000);
	RECEIVE(narrow, 1000, 2000, 70000);
	RECEIVE(narrow, 65536, 0);

	begin(narrow);
	ibv_wr_send(qx), SGES(64);
	ibv_wr_send_imm(qx, htobe32(0xabcd1234)), SGES(64, 1000);
	ibv_wr_send(qx), ibv_wr_set_sge_list(qx, 0, NULL), to();
	ibv_wr_send(qx), INLINE(32);
	ibv_wr_send_imm(qx, htobe32(0x11223344)), INLINE(5);
	ibv_wr_rdma_read(qx, mr->rkey, at + 40000), SGES(512);
	ibv_wr_rdma_write(qx, mr->rkey, at + 41000), SGES(513);
	ibv_wr_rdma_write_imm(qx, mr->rkey, at + 42000, htobe32(0x55667788)), SGES(514);
	end();
	wait_for(8);
	begin(narrow); /* around the end of the ring */
	for (int i = 0; i < 10; i++)
		ibv_wr_send(qx), SGES(100 + i);
	end();
	wait_for(10);

	begin(wide);
	ibv_wr_send(qx), SGES(64, 1000);
	ibv_wr_send(qx), INLINE(80);
	ibv_wr_send_imm(qx, htobe32(0xabcd1234)), INLINE(33);
	ibv_wr_rdma_read(qx, mr->rkey, at + 40000), SGES(512);
	ibv_wr_rdma_write(qx, mr->rkey, at + 41000), SGES(513);
	ibv_wr_rdma_write(qx, mr->rkey, at + 41000), INLINE(80);
	ibv_wr_rdma_write_imm(qx, mr->rkey, at + 42000, htobe32(0x55667788)), INLINE(5);
	end();
	wait_for(7);
	return 0;
}

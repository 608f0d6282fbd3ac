/*
 * The registration of memory, with rdma-core: memory of so many bytes, which is there already, is
 * registered and deregistered again and again.
 *
 *     mr DEVICE SIZE COUNT
 *
 * It prints the nanoseconds of each registration, and of each deregistration behind it.
 */
#include "common.h"
#include <sys/mman.h>

int main(int argc, char **argv)
{
	struct ibv_context *ctx;
	struct ibv_pd *pd;
	size_t size;
	char *buf;

	if (argc != 4) {
		fprintf(stderr, "usage: %s DEVICE SIZE COUNT\n", argv[0]);
		return 2;
	}
	size = strtoull(argv[2], NULL, 10);
	if (!(ctx = open_device(argv[1])) || !(pd = ibv_alloc_pd(ctx)))
		fail(argv[1]);
	buf = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (buf == MAP_FAILED)
		fail("memory");
	for (size_t i = 0; i < size; i += 4096)
		buf[i] = 1;
	for (int i = 0; i < atoi(argv[3]); i++) {
		long long begin = now(), reg;
		struct ibv_mr *mr = ibv_reg_mr(pd, buf, size, IBV_ACCESS_LOCAL_WRITE);

		if (!mr)
			fail("ibv_reg_mr");
		reg = now() - begin;
		begin = now();
		if (ibv_dereg_mr(mr))
			fail("ibv_dereg_mr");
		printf("%lld %lld\n", reg, now() - begin);
	}
	return 0;
}

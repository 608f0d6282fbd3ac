// A client's memory as versitygw has it (rdma/hostclient), by libmlx5. It prints the token of SIZE bytes, and then does
// what standard input says: "load" reads the bytes that follow into the memory, "dump" writes them to standard output.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "rdma_host_client_wrapper.h"

int main(int argc, char **argv) {
	if (argc != 4) {
		fprintf(stderr, "usage: versity-client DEVICE GIDINDEX SIZE\n");
		return 2;
	}
	size_t size = strtoul(argv[3], nullptr, 10);
	auto *c = rdma_host_client_create(argv[1], 1, atoi(argv[2]), 0xffeeddcc);
	void *p = c && !rdma_host_client_last_error(c) ? rdma_host_client_alloc(c, size) : nullptr;
	const char *token = p ? rdma_host_client_token(c) : nullptr;
	if (!token) {
		const char *why = c ? rdma_host_client_last_error(c) : nullptr;
		fprintf(stderr, "versity-client: %s\n", why ? why : "no memory");
		return 1;
	}
	printf("%s\n", token);
	fflush(stdout);
	char line[16];
	while (fgets(line, sizeof line, stdin)) {
		bool ok = true;
		if (!strcmp(line, "load\n"))
			ok = fread(p, 1, size, stdin) == size && printf("loaded\n") > 0;
		else if (!strcmp(line, "dump\n"))
			ok = fwrite(p, 1, size, stdout) == size;
		if (!ok || fflush(stdout))
			return 1;
	}
	rdma_host_client_destroy(c);
	return 0;
}

/*
 * What test/bench/open does with our library, done with rdma-core's: it opens a device, or none if
 * its name is empty, says so with the nanoseconds that this took, and ends.
 *
 *     open DEVICE
 */
#include "common.h"
#include <unistd.h>

int main(int argc, char **argv)
{
	long long begin = now();
	char line[64];
	int n;

	if (argc != 2) {
		fprintf(stderr, "usage: %s DEVICE\n", argv[0]);
		return 2;
	}
	if (*argv[1] && !open_device(argv[1]))
		fail(argv[1]);
	n = snprintf(line, sizeof line, "ready %lld\n", now() - begin);
	if (write(1, line, n) != n)
		return 1;
	return 0;
}

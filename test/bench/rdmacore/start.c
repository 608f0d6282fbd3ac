/*
 * Starts a program some times, as a shell does, and says for each how many nanoseconds it took from
 * before it was started until it said "ready NANOSECONDS", and how many it said.
 *
 *     start TIMES PROGRAM [ARGUMENT...]
 *
 * It is in C for both sides: a parent that takes milliseconds to start a program would be counted
 * for each, and the ratio tell less of the programs.
 */
#include "common.h"
#include <errno.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

static void start(char **line)
{
	posix_spawn_file_actions_t files;
	char said[64] = "";
	long long begin, took, own = 0;
	int out[2], status;
	pid_t pid;
	FILE *in;

	if (pipe(out) || posix_spawn_file_actions_init(&files) || posix_spawn_file_actions_adddup2(&files, out[1], 1) ||
	    posix_spawn_file_actions_addclose(&files, out[0]) || posix_spawn_file_actions_addclose(&files, out[1]))
		fail("pipe");
	begin = now();
	if ((errno = posix_spawnp(&pid, line[0], &files, NULL, line, environ)))
		fail(line[0]);
	close(out[1]);
	in = fdopen(out[0], "r");
	if (!in)
		fail("pipe");
	if (!fgets(said, sizeof said, in))
		said[0] = 0;
	took = now() - begin;
	fclose(in);
	posix_spawn_file_actions_destroy(&files);
	if (waitpid(pid, &status, 0) < 0)
		fail("wait");
	if (status) {
		fprintf(stderr, "%s failed: status %#x\n", line[0], status);
		exit(1);
	}
	if (sscanf(said, "ready %lld", &own) != 1 || own <= 0) {
		fprintf(stderr, "%s says \"%s\", want ready and a number of nanoseconds\n", line[0], said);
		exit(1);
	}
	printf("%lld %lld\n", took, own);
}

int main(int argc, char **argv)
{
	int times = argc > 2 ? atoi(argv[1]) : 0;

	if (times < 1) {
		fprintf(stderr, "usage: %s TIMES PROGRAM [ARGUMENT...]\n", argv[0]);
		return 2;
	}
	while (times--)
		start(argv + 2);
	return 0;
}

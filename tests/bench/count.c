/*
 * Counts instructions by single-stepping a child. Slow, but exact and the same each time, with no
 * help from performance counters, which shared machines seldom have.
 */
#include "tests/bench/bench.h"

#include <signal.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

static long child_word(pid_t child, size_t offset)
{
	return ptrace(PTRACE_PEEKUSER, child, offset, 0);
}

/*
 * Until the child exits. Between stages it runs freely up to the breakpoint in bench_mark. A
 * repeated string instruction counts once.
 */
static bool trace(pid_t child, uint64_t insns[STAGE_MAX])
{
	unsigned stage = STAGE_NONE;
	long before = 0;
	int status;

	for (;;) {
		bool steps = stage != STAGE_NONE;
		long rip;

		if (ptrace(steps ? PTRACE_SINGLESTEP : PTRACE_CONT, child, 0, 0) ||
		    waitpid(child, &status, 0) != child)
			return false;
		if (WIFEXITED(status))
			return WEXITSTATUS(status) == 0;
		if (!WIFSTOPPED(status) || WSTOPSIG(status) != SIGTRAP)
			return false;
		rip = child_word(child, offsetof(struct user_regs_struct, rip));
		if (steps && rip == before)
			continue;
		before = rip;
		insns[stage]++;
		if (!steps || rip == (long)(uintptr_t)bench_mark)
			stage = (unsigned)child_word(child,
			                             offsetof(struct user_regs_struct, rdi)) %
			        STAGE_MAX;
	}
}

static bool run(void (*work)(void *), void *arg, uint64_t insns[STAGE_MAX])
{
	pid_t child = fork();
	int status;

	if (child < 0)
		return false;
	if (child == 0) {
		if (ptrace(PTRACE_TRACEME, 0, 0, 0))
			_exit(1);
		raise(SIGSTOP);
		bench_traced = true;
		work(arg);
		_exit(0);
	}
	if (waitpid(child, &status, 0) != child || !WIFSTOPPED(status))
		return false;
	return trace(child, insns);
}

static void marks_only(void *arg)
{
	(void)arg;
	for (unsigned i = 0; i < 10; i++) {
		bench_mark(STAGE_MAX - 1);
		bench_mark(STAGE_NONE);
	}
}

bool count_instructions(void (*work)(void *), void *arg, uint64_t insns[STAGE_MAX])
{
	uint64_t mark[STAGE_MAX] = {0};

	memset(insns, 0, STAGE_MAX * sizeof(insns[0]));
	if (!run(marks_only, NULL, mark) || !run(work, arg, insns))
		return false;
	/* A caller does not know how often it marked a stage, so it marks each once for the same
	 * amount of work and subtracts this. */
	insns[STAGE_MAX - 1] = mark[STAGE_MAX - 1] / 10;
	return true;
}

#include "persist/walk.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"

struct verdict {
	int32_t rc;
	char why[252];
};
/* One write of this size to a pipe is whole or not at all. */
_Static_assert(sizeof(struct verdict) == 256, "verdict");

static _Noreturn void child(int fd, pfx_walk_fn *fn, void *arg)
{
	static const int deadly[] = { SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGILL, SIGPIPE, SIGTERM };
	struct rlimit none = { 0, 0 };
	struct verdict v = { 0 };

	for (size_t i = 0; i < sizeof(deadly) / sizeof(deadly[0]); i++) {
		signal(deadly[i], SIG_DFL);
	}
	setrlimit(RLIMIT_CORE, &none);
	prctl(PR_SET_PDEATHSIG, SIGKILL); /* nobody would hear the verdict */
	v.rc = fn(arg, v.why, sizeof(v.why));
	_exit(write(fd, &v, sizeof(v)) == (ssize_t)sizeof(v) ? 0 : 1);
}

/* Waits for the verdict or the end of the child: 1, 0 at its end without one, -ETIMEDOUT. */
static int receive(int fd, uint32_t ms_max, struct verdict *v)
{
	uint64_t end = pfx_clock_ns() + (uint64_t)ms_max * 1000000;

	for (;;) {
		struct pollfd p = { .fd = fd, .events = POLLIN };
		uint64_t now = pfx_clock_ns();
		int left = now < end ? (int)((end - now) / 1000000) + 1 : 0;
		int n = poll(&p, 1, left);

		if (n > 0) {
			return read(fd, v, sizeof(*v)) == (ssize_t)sizeof(*v);
		}
		if (n == 0) {
			return -ETIMEDOUT;
		}
		if (errno != EINTR) {
			return 0;
		}
	}
}

int pfx_walk(pfx_walk_fn *fn, void *arg, uint32_t ms_max, char *why, size_t whylen)
{
	struct verdict v;
	int fds[2], status = 0, got;
	pid_t pid;

	if (pipe(fds) != 0) {
		return pfx_fail(-errno, why, whylen, "no pipe: %s", strerror(errno));
	}
	/* What stands in the buffers of stdio is the parent's to write. */
	fflush(NULL);
	pid = fork();
	if (pid == 0) {
		close(fds[0]);
		child(fds[1], fn, arg);
	}
	close(fds[1]);
	if (pid < 0) {
		int rc = -errno;

		close(fds[0]);
		return pfx_fail(rc, why, whylen, "no child process: %s", strerror(-rc));
	}
	got = receive(fds[0], ms_max, &v);
	close(fds[0]);
	if (got == -ETIMEDOUT) {
		kill(pid, SIGKILL);
	}
	while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
	}
	if (got == -ETIMEDOUT) {
		return pfx_fail(got, why, whylen, "was not walked within %u ms", ms_max);
	}
	if (got == 1) {
		v.why[sizeof(v.why) - 1] = '\0';
		return v.rc != 0 ? pfx_fail(v.rc, why, whylen, "%s", v.why) : 0;
	}
	return pfx_fail(PFX_E_FORMAT, why, whylen, "the process that walked it ended with %s %d",
		WIFSIGNALED(status) ? "signal" : "status",
		WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
}

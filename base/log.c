#include "base/log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"

static _Atomic int level_max = PFX_LOG_INFO;
static const char *const level_names[] = { "error", "warn", "info", "debug" };

void pfx_log_set_level(enum pfx_log_level level)
{
	level_max = (int)level;
}

enum pfx_log_level pfx_log_get_level(void)
{
	return (enum pfx_log_level)atomic_load_explicit(&level_max, memory_order_relaxed);
}

int pfx_log_parse_level(const char *word, enum pfx_log_level *out)
{
	for (int i = 0; i < 4; i++) {
		if (strcmp(word, level_names[i]) == 0) {
			*out = (enum pfx_log_level)i;
			return 0;
		}
	}
	return -EINVAL;
}

const char *pfx_log_level_name(enum pfx_log_level level)
{
	return level_names[level];
}

void pfx_log(enum pfx_log_level level, const char *area, const char *fmt, ...)
{
	char line[2048];
	uint64_t now = pfx_clock_wall_ns();
	time_t sec = (time_t)(now / 1000000000u);
	struct tm tm;
	va_list ap;
	size_t n;
	int m;

	if (level > pfx_log_get_level()) {
		return;
	}
	gmtime_r(&sec, &tm);
	n = strftime(line, sizeof(line), "%Y-%m-%dT%H:%M:%S", &tm);
	n += (size_t)snprintf(line + n, sizeof(line) - n, ".%03uZ %s %s: ",
		(unsigned)(now / 1000000u % 1000u), level_names[level], area);
	va_start(ap, fmt);
	m = vsnprintf(line + n, sizeof(line) - n, fmt, ap);
	va_end(ap);
	if (m < 0) {
		return;
	}
	n += (size_t)m;
	if (n > sizeof(line) - 2) {
		n = sizeof(line) - 2;
	}
	/* A message must stay one line, whatever text it quotes. */
	for (size_t i = 0; i < n; i++) {
		if ((unsigned char)line[i] < 0x20 || line[i] == 0x7f) {
			line[i] = '?';
		}
	}
	line[n++] = '\n';
	/* There is nobody to tell when stderr itself fails. */
	if (write(STDERR_FILENO, line, n) < 0) {
		return;
	}
}

int pfx_log_rate(struct pfx_log_rate *rate, uint64_t *suppressed)
{
	uint64_t now = pfx_clock_ns();
	uint64_t next = atomic_load(&rate->next_ns);

	if (now < next || !atomic_compare_exchange_strong(&rate->next_ns, &next, now + 1000000000u)) {
		atomic_fetch_add(&rate->held, 1);
		return 0;
	}
	*suppressed = atomic_exchange(&rate->held, 0);
	return 1;
}

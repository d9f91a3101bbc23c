#ifndef PFX_BASE_LOG_H
#define PFX_BASE_LOG_H

/*
 * One line an event on stderr: time, level, area, message; details as key=value at its
 * end. Prompt and reply text never goes into the log. Thread-safe; a line is one write.
 */

#include <stddef.h>
#include <stdint.h>

enum pfx_log_level { PFX_LOG_ERROR, PFX_LOG_WARN, PFX_LOG_INFO, PFX_LOG_DEBUG };

void pfx_log_set_level(enum pfx_log_level level);
enum pfx_log_level pfx_log_get_level(void);
/* "error", "warn", "info" or "debug"; -EINVAL for any other word. */
int pfx_log_parse_level(const char *word, enum pfx_log_level *out);

const char *pfx_log_level_name(enum pfx_log_level level);

/* area: the folder or program, e.g. "engine". */
void pfx_log(enum pfx_log_level level, const char *area, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

#define pfx_error(area, ...) pfx_log(PFX_LOG_ERROR, area, __VA_ARGS__)
#define pfx_warn(area, ...) pfx_log(PFX_LOG_WARN, area, __VA_ARGS__)
#define pfx_info(area, ...) pfx_log(PFX_LOG_INFO, area, __VA_ARGS__)
#define pfx_debug(area, ...) \
	do { \
		if (__builtin_expect(pfx_log_get_level() >= PFX_LOG_DEBUG, 0)) \
			pfx_log(PFX_LOG_DEBUG, area, __VA_ARGS__); \
	} while (0)

/*
 * For what may repeat: true at most once a second per site, and then *suppressed is how
 * many were held back since. The caller keeps a zeroed static one for each site.
 */
struct pfx_log_rate {
	_Atomic uint64_t next_ns;
	_Atomic uint64_t held;
};
int pfx_log_rate(struct pfx_log_rate *rate, uint64_t *suppressed);

#endif

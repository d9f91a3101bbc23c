#ifndef PFX_TOOLS_SETTINGS_H
#define PFX_TOOLS_SETTINGS_H

/*
 * prefixd's settings: one table gives the command line's options, the config file's names
 * and the help. The command line outranks the file; of a repeated option the last one wins.
 */

#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include <jansson.h>

#include "base/log.h"

struct pfx_settings {
	char *model, *listen, *backend, *kernels, *activations, *kv_dtype, *chat_template;
	char *store, *save; /* a folder or off; off, reused or all */
	char *eviction;     /* default or lru */
	char *pin_threads;  /* off or on */
	uint64_t host_memory, store_size; /* 0: none, and the default */
	int store_replace;
	uint64_t device_memory, logits_memory, text_cache, max_line, max_unread;
	uint32_t threads, block_tokens, chunk_tokens, step_ms, max_requests, queue, context;
	uint32_t load_wait_ms;
	uint32_t max_connections, max_in_flight, idle_timeout_ms;
	uint32_t max_sessions, namespace_sessions, max_prefixes, namespace_prefixes, max_pins;
	uint32_t session_ttl_ms, pin_ttl_ms, pin_ttl_max_ms;
	uint64_t session_memory, prefix_memory;
	struct tm template_time;
	int has_template_time;
	enum pfx_log_level log_level;
	int listen_given; /* not the default */
	int check_only;   /* --check-config: say whether the settings are good, and no more */
};

/*
 * Reads argv and the config file that it may name. --help and --version end the program;
 * every other trouble is -EINVAL with a sentence that names the option, or the file and
 * line.
 */
int pfx_settings_read(struct pfx_settings *s, int argc, char **argv, char *err, size_t errlen);
/*
 * All settings by their names, as they are in force: sizes in bytes, times in seconds, null where
 * none is set. A new reference; NULL for lack of memory.
 */
json_t *pfx_settings_json(const struct pfx_settings *s);
void pfx_settings_free(struct pfx_settings *s);

#endif

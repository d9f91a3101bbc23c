#include "config.h"

#include "tools/settings.h"

#include <argp.h>
#include <confuse.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/alloc.h"
#include "base/error.h"

const char *argp_program_version = "prefixd " PACKAGE_VERSION;

enum type {
	TEXT,
	WORD,    /* one of `words`, separated by | */
	U32,
	SIZE,    /* bytes; K, M, G and T are powers of 1024 */
	SIZE_OFF, /* the same, or off, which is 0 */
	SECONDS, /* kept as milliseconds */
	TIME,
	LEVEL,
	LATER,   /* of a part that this version does not have: only `words` are taken */
	FLAG,
	CONFIG,
};

enum group { G_MODEL = 1, G_NET, G_MEMORY, G_KEPT, G_SCHED, G_PROGRAM };

#define AT(field) offsetof(struct pfx_settings, field)

static const struct setting {
	const char *name, *arg, *words;
	enum type type;
	enum group group;
	size_t at;
	double lo, hi;
	const char *otherwise; /* the default; NULL: zero, or none */
	const char *help;
} settings[] = {
	{ "model", "FILE", NULL, TEXT, G_MODEL, AT(model), 0, 0, NULL,
		"The model, a GGUF file (required)" },
	{ "backend", "NAME", "auto|cpu|cuda", WORD, G_MODEL, AT(backend), 0, 0, "auto",
		"Where it runs: auto, cpu or cuda" },
	{ "kernels", "NAME", "auto|amx|avx512|avx2|reference", WORD, G_MODEL, AT(kernels), 0, 0, "auto",
		"Which variant of the CPU's kernels: auto, amx, avx512, avx2 or reference" },
	{ "activations", "NAME", "exact|fast", WORD, G_MODEL, AT(activations), 0, 0, "exact",
		"What quantised weights are multiplied with: exact (16 bits) or fast (8 bits)" },
	{ "threads", "N", NULL, U32, G_MODEL, AT(threads), 0, 4096, NULL,
		"Threads that compute; 0 is one a core" },
	{ "pin-threads", "WHAT", "off|on", WORD, G_MODEL, AT(pin_threads), 0, 0, "off",
		"on: each of them stays on a core of its own" },
	{ "context", "N", NULL, U32, G_MODEL, AT(context), 0, UINT32_MAX, NULL,
		"Most tokens of a prompt and its reply; 0 is what the model allows" },
	{ "chat-template", "FILE", NULL, TEXT, G_MODEL, AT(chat_template), 0, 0, NULL,
		"A Jinja template instead of the model's own" },
	{ "template-time", "TIME", NULL, TIME, G_MODEL, AT(template_time), 0, 0, NULL,
		"What the template takes for now, as 2025-03-09T14:05:06, for a date that moves ends "
		"reuse at midnight" },

	{ "listen", "ADDR", NULL, TEXT, G_NET, AT(listen), 0, 0, "127.0.0.1:7077",
		"Where the line protocol listens: HOST:PORT or unix:PATH, or several with commas between "
		"them; port 0 takes a free one" },
	{ "http", "ADDR", "off", LATER, G_NET, 0, 0, 0, "off", "Where HTTP listens, or off" },
	{ "keys", "FILE", "off", LATER, G_NET, 0, 0, 0, NULL, "The table of keys" },
	{ "max-connections", "N", NULL, U32, G_NET, AT(max_connections), 1, 1000000, "10000",
		"Connections at once" },
	{ "max-in-flight", "N", NULL, U32, G_NET, AT(max_in_flight), 1, 1000000, "1024",
		"Requests in flight on one connection" },
	{ "max-line", "SIZE", NULL, SIZE, G_NET, AT(max_line), 1024, 1 << 30, "16M",
		"Longest request line, and most raw bytes of a prompt" },
	{ "max-unread", "SIZE", NULL, SIZE, G_NET, AT(max_unread), 65536, 1e15, "64M",
		"Replies that a client may leave unread before it is disconnected" },
	{ "idle-timeout", "SECONDS", NULL, SECONDS, G_NET, AT(idle_timeout_ms), 0, 4e6, "3600",
		"Ends connections on which nothing moved for so long; 0 is never" },

	{ "device-memory", "SIZE", NULL, SIZE, G_MEMORY, AT(device_memory), 1, 1e18, "1G",
		"Memory for keys and values" },
	{ "kv-dtype", "TYPE", "f16|int8", WORD, G_MEMORY, AT(kv_dtype), 0, 0, "f16",
		"How keys and values are kept: f16, or int8 with a scale for each position and head, in half "
		"the memory" },
	{ "logits-memory", "SIZE", NULL, SIZE, G_MEMORY, AT(logits_memory), 0, 1e18, "64M",
		"Memory for the logits that are kept where prompts ended" },
	{ "text-cache", "SIZE", NULL, SIZE_OFF, G_MEMORY, AT(text_cache), 0, 1e18, "64M",
		"Memory for the token ids of texts that were tokenised before, or off" },
	{ "block-tokens", "N", NULL, U32, G_MEMORY, AT(block_tokens), 0, 256, NULL,
		"Positions of a block, a power of two; 0 is 32" },
	{ "host-memory", "SIZE", NULL, SIZE_OFF, G_MEMORY, AT(host_memory), 0, 1e18, "off",
		"Memory for what the device has no room for, or off" },
	{ "store", "DIR", NULL, TEXT, G_MEMORY, AT(store), 0, 0, "off",
		"A folder for what shall outlive the program, or off" },
	{ "store-size", "SIZE", NULL, SIZE, G_MEMORY, AT(store_size), 0, 1e18, NULL,
		"What the store may take on the disk; 0 is 16G, or three quarters of what is free" },
	{ "eviction", "POLICY", "default|lru", WORD, G_MEMORY, AT(eviction), 0, 0, "default",
		"What the device lets go first: what was not used for longest (lru), or by what the past "
		"teaches, too" },
	{ "save", "WHAT", "off|reused|all", WORD, G_MEMORY, AT(save), 0, 0, "reused",
		"What goes to the store by itself: all, what was used again (reused), or nothing (off)" },
	{ "load-wait", "SECONDS", NULL, SECONDS, G_MEMORY, AT(load_wait_ms), 0.001, 3600, "0.2",
		"How long a request waits for its next block from the store at least, until it computes "
		"it" },
	{ "store-replace", NULL, NULL, FLAG, G_MEMORY, AT(store_replace), 0, 0, NULL,
		"Clear a store that belongs to another model, block size or version" },

	{ "max-sessions", "N", NULL, U32, G_KEPT, AT(max_sessions), 1, 1e8, "20000",
		"Sessions that are open at once" },
	{ "namespace-sessions", "N", NULL, U32, G_KEPT, AT(namespace_sessions), 1, 1e8, "10000",
		"Sessions of one namespace" },
	{ "session-memory", "SIZE", NULL, SIZE, G_KEPT, AT(session_memory), 1, 1e15, "256M",
		"What all sessions may hold" },
	{ "session-ttl", "SECONDS", NULL, SECONDS, G_KEPT, AT(session_ttl_ms), 0.001, 4e6, "3600",
		"How long a session lives in which nothing is said, when its client does not say" },
	{ "max-prefixes", "N", NULL, U32, G_KEPT, AT(max_prefixes), 1, 1e8, "10000",
		"Named prefixes" },
	{ "namespace-prefixes", "N", NULL, U32, G_KEPT, AT(namespace_prefixes), 1, 1e8, "1000",
		"Named prefixes of one namespace" },
	{ "prefix-memory", "SIZE", NULL, SIZE, G_KEPT, AT(prefix_memory), 1, 1e15, "256M",
		"What all named prefixes may hold" },
	{ "max-pins", "N", NULL, U32, G_KEPT, AT(max_pins), 1, 1e6, "1000", "Leases at once" },
	{ "pin-ttl", "SECONDS", NULL, SECONDS, G_KEPT, AT(pin_ttl_ms), 0.001, 4e6, "3600",
		"How long a lease lasts when its client does not say" },
	{ "pin-ttl-max", "SECONDS", NULL, SECONDS, G_KEPT, AT(pin_ttl_max_ms), 0.001, 4e6, "86400",
		"The longest lease that a client may ask for" },

	{ "max-requests", "N", NULL, U32, G_SCHED, AT(max_requests), 0, 65536, NULL,
		"Requests that run at once; 0 is 64" },
	{ "queue", "N", NULL, U32, G_SCHED, AT(queue), 0, 1000000, NULL,
		"Requests that wait at once; 0 is 1024" },
	{ "chunk-tokens", "N", NULL, U32, G_SCHED, AT(chunk_tokens), 0, 1000000, NULL,
		"Most prompt tokens of a step; 0 is 512" },
	{ "step-ms", "N", NULL, U32, G_SCHED, AT(step_ms), 0, 60000, NULL,
		"How many milliseconds a step should take while others decode; 0 is 100" },

	{ "log-level", "LEVEL", NULL, LEVEL, G_PROGRAM, AT(log_level), 0, 0, "info",
		"error, warn, info or debug" },
	{ "config", "FILE", NULL, CONFIG, G_PROGRAM, 0, 0, 0, NULL,
		"Settings from a file, by the same names, as in: threads = 4" },
	{ "check-config", NULL, NULL, FLAG, G_PROGRAM, AT(check_only), 0, 0, NULL,
		"Check the settings, say ok and end" },
};

#define N_SETTINGS (sizeof(settings) / sizeof(settings[0]))
#define FIRST_KEY 256
#define CONFIG_BYTES_MAX (1 << 20)

/* ---- values ---- */

static int bad_value(const struct setting *d, const char *value, const char *wanted, char *err,
	size_t errlen)
{
	return pfx_fail(-EINVAL, err, errlen, "%s must be %s, not \"%s\"", d->name, wanted, value);
}

static int in_words(const char *words, const char *value)
{
	size_t n = strlen(value);

	for (const char *w = words; w != NULL && *w != 0;) {
		size_t len = strcspn(w, "|");

		if (len == n && memcmp(w, value, n) == 0) {
			return 1;
		}
		w += len + (w[len] == '|');
	}
	return 0;
}

/* A whole number; *rest is what stands behind it. */
static int whole(const char *value, uint64_t *out, const char **rest)
{
	char *end;

	if (*value < '0' || *value > '9') {
		return -EINVAL;
	}
	errno = 0;
	*out = strtoull(value, &end, 10);
	*rest = end;
	return errno == 0 ? 0 : -ERANGE;
}

static int set_number(const struct setting *d, void *to, const char *value, char *err,
	size_t errlen)
{
	static const char units[] = "KMGT";
	const char *rest, *unit;
	char wanted[96];
	uint64_t v;
	int rc, size = d->type == SIZE || d->type == SIZE_OFF;

	if (d->type == SIZE_OFF && strcmp(value, "off") == 0) {
		*(uint64_t *)to = 0;
		return 0;
	}
	rc = whole(value, &v, &rest);
	if (rc == 0 && size && *rest != 0) {
		unit = strchr(units, *rest >= 'a' ? *rest - 32 : *rest);
		rc = unit == NULL || rest[1] != 0
			|| __builtin_mul_overflow(v, 1ull << (10 * (unit - units + 1)), &v) ? -EINVAL : 0;
	} else if (rc == 0 && *rest != 0) {
		rc = -EINVAL;
	}
	if (rc < 0 || (double)v < d->lo || (double)v > d->hi) {
		snprintf(wanted, sizeof(wanted), size ? "a size from %.0f to %.0f, like 512M"
			: "a whole number from %.0f to %.0f", d->lo, d->hi);
		return bad_value(d, value, wanted, err, errlen);
	}
	if (size) {
		*(uint64_t *)to = v;
	} else {
		*(uint32_t *)to = (uint32_t)v;
	}
	return 0;
}

static int set_seconds(const struct setting *d, void *to, const char *value, char *err,
	size_t errlen)
{
	char *end, wanted[64];
	double v = strtod(value, &end);

	/* strtod takes more than people write: blanks in front, a sign, hexadecimals. */
	if (strspn(value, "0123456789.") != strlen(value) || end == value || *end != 0
		|| !(v >= d->lo && v <= d->hi)) {
		snprintf(wanted, sizeof(wanted), "a number of seconds from %g to %.0f", d->lo, d->hi);
		return bad_value(d, value, wanted, err, errlen);
	}
	*(uint32_t *)to = (uint32_t)(v * 1000 + 0.5);
	return 0;
}

static int set_time(const struct setting *d, struct pfx_settings *s, const char *value, char *err,
	size_t errlen)
{
	struct tm tm, again;
	const char *end;
	time_t t;
	int day;

	memset(&tm, 0, sizeof(tm));
	end = strptime(value, "%Y-%m-%dT%H:%M:%S", &tm);
	/* It stands as it is, without a zone; UTC here only finds the weekday. */
	day = tm.tm_mday;
	t = end == NULL ? 0 : timegm(&tm);
	if (end == NULL || *end != 0 || gmtime_r(&t, &again) == NULL || again.tm_mday != day) {
		return bad_value(d, value, "a time like 2025-03-09T14:05:06", err, errlen);
	}
	s->template_time = again;
	s->has_template_time = 1;
	return 0;
}

static int set_text(char **to, const char *value)
{
	pfx_free(*to);
	*to = pfx_xstrdup(value);
	return 0;
}

static int set(struct pfx_settings *s, const struct setting *d, const char *value, char *err,
	size_t errlen)
{
	void *to = (char *)s + d->at;

	switch (d->type) {
	case TEXT:
		if (*value == 0) {
			return pfx_fail(-EINVAL, err, errlen, "%s is empty", d->name);
		}
		return set_text(to, value);
	case WORD:
		return in_words(d->words, value) ? set_text(to, value)
			: pfx_fail(-EINVAL, err, errlen, "%s must be one of %s, not \"%s\"", d->name, d->words,
				value);
	case U32:
	case SIZE:
	case SIZE_OFF:
		return set_number(d, to, value, err, errlen);
	case SECONDS:
		return set_seconds(d, to, value, err, errlen);
	case TIME:
		return set_time(d, s, value, err, errlen);
	case LEVEL:
		return pfx_log_parse_level(value, to) == 0 ? 0
			: bad_value(d, value, "error, warn, info or debug", err, errlen);
	case LATER:
		return in_words(d->words, value) ? 0 : pfx_fail(-EINVAL, err, errlen,
			"%s asks for a part that this version of prefixd does not have; it takes only off",
			d->name);
	case FLAG:
		*(int *)to = 1;
		return 0;
	case CONFIG:
		break;
	}
	return 0;
}

/* ---- the command line ---- */

struct given {
	size_t at;
	const char *value;
};

struct command {
	struct given *given; /* in order */
	size_t n;
	const char *config;
};

static error_t on_option(int key, char *arg, struct argp_state *state)
{
	struct command *c = state->input;
	size_t at = (size_t)(key - FIRST_KEY);

	if (key == ARGP_KEY_ARG) {
		argp_error(state, "unexpected word %s", arg);
		return EINVAL;
	}
	if (key < FIRST_KEY || at >= N_SETTINGS) {
		return ARGP_ERR_UNKNOWN;
	}
	if (settings[at].type == CONFIG) {
		c->config = arg;
		return 0;
	}
	c->given = pfx_xrealloc(c->given, (c->n + 1) * sizeof(*c->given));
	c->given[c->n++] = (struct given){ at, arg };
	return 0;
}

static void read_command(struct command *c, int argc, char **argv)
{
	static const char *const groups[] = { "", "Model", "Network", "Memory", "Kept for clients", "Scheduling",
		"Program" };
	struct argp_option options[N_SETTINGS + 7];
	char help[N_SETTINGS][256];
	struct argp argp = { options, on_option, NULL,
		"Serves a language model and never computes the same prompt prefix twice."
		"\vSizes take K, M, G and T. SIGTERM lets running requests finish and ends with status "
		"0; a second one ends at once. Errors end with a status from 1 to 125.",
		NULL, NULL, NULL };
	size_t n = 0;

	memset(options, 0, sizeof(options));
	for (size_t i = 0; i < N_SETTINGS; i++) {
		const struct setting *d = &settings[i];

		if (i == 0 || d->group != d[-1].group) {
			options[n++] = (struct argp_option){ .doc = groups[d->group], .group = d->group };
		}
		snprintf(help[i], sizeof(help[i]), d->type == LATER ? "%s (not in this version)"
			: d->otherwise == NULL ? "%s" : "%s (default: %s)", d->help, d->otherwise);
		options[n++] = (struct argp_option){ d->name, FIRST_KEY + (int)i, d->arg, 0, help[i],
			d->group };
	}
	argp_err_exit_status = 2;
	argp_parse(&argp, argc, argv, 0, NULL, c);
}

/* ---- the config file ---- */

/* libconfuse's callbacks carry no argument of ours; one file is read at a time. */
static struct {
	struct pfx_settings *s;
	char *err;
	size_t errlen;
} reading;

static void on_config_error(cfg_t *cfg, const char *fmt, va_list ap)
{
	size_t n;

	if (reading.err == NULL || reading.err[0] != 0) {
		return;
	}
	n = (size_t)snprintf(reading.err, reading.errlen, "%s:%d: ", cfg->filename, cfg->line);
	if (n < reading.errlen) {
		vsnprintf(reading.err + n, reading.errlen - n, fmt, ap);
	}
}

static int on_config_value(cfg_t *cfg, cfg_opt_t *opt, const char *value, void *result)
{
	char why[256];

	*(long *)result = 1;
	for (size_t i = 0; i < N_SETTINGS; i++) {
		const char *a = settings[i].name, *b = opt->name;

		while (*a != 0 && (*a == *b || (*a == '-' && *b == '_'))) {
			a++;
			b++;
		}
		if (*a != 0 || *b != 0) {
			continue;
		}
		if (set(reading.s, &settings[i], value, why, sizeof(why)) < 0) {
			cfg_error(cfg, "%s", why);
			return -1;
		}
		reading.s->listen_given |= strcmp(settings[i].name, "listen") == 0;
	}
	return 0;
}

static int read_config(struct pfx_settings *s, const char *path, char *err, size_t errlen)
{
	cfg_opt_t opts[2 * N_SETTINGS + 1];
	char names[N_SETTINGS][32];
	size_t n = 0;
	cfg_t *cfg;
	struct stat st;
	int rc;

	/* Looked at first: the library ends the program at a directory, and reads devices for ever. */
	if (stat(path, &st) < 0) {
		return pfx_fail(-errno, err, errlen, "config %s: %s", path, strerror(errno));
	}
	if (!S_ISREG(st.st_mode) || st.st_size > CONFIG_BYTES_MAX) {
		return pfx_fail(-EINVAL, err, errlen, "config %s is not a regular file of at most %d bytes",
			path, CONFIG_BYTES_MAX);
	}
	for (size_t i = 0; i < N_SETTINGS; i++) {
		if (settings[i].type == CONFIG || settings[i].type == FLAG) {
			continue;
		}
		opts[n++] = (cfg_opt_t)CFG_INT_CB(settings[i].name, 0, CFGF_NONE, on_config_value);
		snprintf(names[i], sizeof(names[i]), "%s", settings[i].name);
		for (char *c = names[i]; *c != 0; c++) {
			*c = *c == '-' ? '_' : *c;
		}
		if (strcmp(names[i], settings[i].name) != 0) {
			opts[n++] = (cfg_opt_t)CFG_INT_CB(names[i], 0, CFGF_NONE, on_config_value);
		}
	}
	opts[n] = (cfg_opt_t)CFG_END();
	cfg = cfg_init(opts, CFGF_NONE);
	if (cfg == NULL) {
		return pfx_fail(-ENOMEM, err, errlen, "%s: out of memory", path);
	}
	reading.s = s;
	reading.err = err;
	reading.errlen = errlen;
	err[0] = 0;
	cfg_set_error_function(cfg, on_config_error);
	rc = cfg_parse(cfg, path);
	cfg_free(cfg);
	if (rc == CFG_FILE_ERROR) {
		return pfx_fail(-EINVAL, err, errlen, "config %s: %s", path, strerror(errno));
	}
	if (rc != CFG_SUCCESS) {
		return err[0] != 0 ? -EINVAL : pfx_fail(-EINVAL, err, errlen, "%s: cannot be read", path);
	}
	return 0;
}

int pfx_settings_read(struct pfx_settings *s, int argc, char **argv, char *err, size_t errlen)
{
	struct command c = { NULL, 0, NULL };
	int rc = 0;

	memset(s, 0, sizeof(*s));
	read_command(&c, argc, argv);
	for (size_t i = 0; i < N_SETTINGS && rc == 0; i++) {
		if (settings[i].otherwise != NULL) {
			rc = set(s, &settings[i], settings[i].otherwise, err, errlen);
		}
	}
	if (rc == 0 && c.config != NULL) {
		rc = read_config(s, c.config, err, errlen);
	}
	for (size_t i = 0; i < c.n && rc == 0; i++) {
		const struct setting *d = &settings[c.given[i].at];
		char why[256];

		s->listen_given |= strcmp(d->name, "listen") == 0;
		if (set(s, d, c.given[i].value, why, sizeof(why)) < 0) {
			rc = pfx_fail(-EINVAL, err, errlen, "--%s", why);
		}
	}
	pfx_free(c.given);
	if (rc == 0 && s->model == NULL) {
		rc = pfx_fail(-EINVAL, err, errlen, "--model FILE is needed (see --help)");
	}
	if (rc < 0) {
		pfx_settings_free(s);
	}
	return rc;
}

static json_t *value_json(const struct pfx_settings *s, const struct setting *d)
{
	const void *at = (const char *)s + d->at;
	const char *text;
	char when[32];

	switch (d->type) {
	case TEXT:
	case WORD:
		text = *(char *const *)at;
		return text == NULL ? json_null() : json_string(text);
	case U32:
		return json_integer(*(const uint32_t *)at);
	case SIZE:
	case SIZE_OFF:
		return json_integer((json_int_t)*(const uint64_t *)at);
	case SECONDS:
		return json_real(*(const uint32_t *)at / 1000.0);
	case TIME:
		strftime(when, sizeof(when), "%Y-%m-%dT%H:%M:%S", &s->template_time);
		return s->has_template_time ? json_string(when) : json_null();
	case LEVEL:
		return json_string(pfx_log_level_name(*(const enum pfx_log_level *)at));
	case LATER:
		return json_string("off");
	case FLAG:
		return json_boolean(*(const int *)at);
	case CONFIG:
		break;
	}
	return json_null();
}

json_t *pfx_settings_json(const struct pfx_settings *s)
{
	json_t *all = json_object();

	for (size_t i = 0; all != NULL && i < N_SETTINGS; i++) {
		/* Where they came from, and a check that is not running, are no settings in force. */
		if (settings[i].type != CONFIG && settings[i].at != AT(check_only)
			&& json_object_set_new(all, settings[i].name, value_json(s, &settings[i])) < 0) {
			json_decref(all);
			return NULL;
		}
	}
	return all;
}

void pfx_settings_free(struct pfx_settings *s)
{
	pfx_free(s->model);
	pfx_free(s->listen);
	pfx_free(s->backend);
	pfx_free(s->kernels);
	pfx_free(s->activations);
	pfx_free(s->kv_dtype);
	pfx_free(s->chat_template);
	pfx_free(s->store);
	pfx_free(s->save);
	pfx_free(s->eviction);
	pfx_free(s->pin_threads);
	memset(s, 0, sizeof(*s));
}

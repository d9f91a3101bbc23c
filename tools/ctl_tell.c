/* prefixctl: what the tellers of replies share. */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>
#include <wchar.h>

#include "base/buf.h"
#include "base/utf8.h"

#include "tools/ctl.h"

double pfx_ctl_real(const json_t *o, const char *key)
{
	return json_number_value(json_object_get(o, key));
}

long long pfx_ctl_int(const json_t *o, const char *key)
{
	return json_integer_value(json_object_get(o, key));
}

const char *pfx_ctl_str(const json_t *o, const char *key)
{
	const char *text = json_string_value(json_object_get(o, key));

	return text == NULL ? "" : text;
}

/* Divided down to less than 1024; *unit is what that counts. */
static double scaled(double bytes, const char **unit)
{
	static const char *const units[] = { "bytes", "KiB", "MiB", "GiB", "TiB" };
	size_t i = 0;

	while (bytes >= 1024 && i + 1 < sizeof(units) / sizeof(units[0])) {
		bytes /= 1024;
		i++;
	}
	*unit = units[i];
	return bytes;
}

void pfx_ctl_put_bytes(long long bytes)
{
	const char *unit;
	double n = scaled((double)bytes, &unit);

	printf("%.*f %s", bytes < 1024 ? 0 : n < 10 ? 2 : n < 100 ? 1 : 0, n, unit);
}

void pfx_ctl_tell_usage(const json_t *done)
{
	const json_t *usage = json_object_get(done, "usage");
	const json_t *cached = json_object_get(usage, "cached");
	const json_t *timing = json_object_get(done, "timing");
	const json_t *miss = json_object_get(done, "miss");
	const char *finish = json_string_value(json_object_get(done, "finish"));

	fprintf(stderr, "%s: prompt %lld (cached %lld, computed %lld", finish,
		pfx_ctl_int(usage, "prompt_tokens"), pfx_ctl_int(usage, "cached_tokens"),
		pfx_ctl_int(usage, "computed_tokens"));
	if (pfx_ctl_int(cached, "host") + pfx_ctl_int(cached, "disk") > 0) {
		fprintf(stderr, "; from host %lld, from disk %lld", pfx_ctl_int(cached, "host"),
			pfx_ctl_int(cached, "disk"));
	}
	fprintf(stderr, "), completion %lld", pfx_ctl_int(usage, "completion_tokens"));
	if (json_is_number(json_object_get(timing, "ttft_ms"))) {
		fprintf(stderr, ", first token %.2f ms", pfx_ctl_real(timing, "ttft_ms"));
	}
	fprintf(stderr, ", total %.2f ms", pfx_ctl_real(timing, "total_ms"));
	if (json_is_object(miss)) {
		fprintf(stderr, "; missed from token %lld on: %s", pfx_ctl_int(miss, "at_token"),
			json_string_value(json_object_get(miss, "reason")));
	}
	fputs("\n", stderr);
}

int pfx_ctl_width(void)
{
	struct winsize w;

	return isatty(STDOUT_FILENO) && ioctl(STDOUT_FILENO, TIOCGWINSZ, &w) == 0 ? w.ws_col : 0;
}

void pfx_ctl_put_str(const json_t *o, const char *key, int columns)
{
	const json_t *v = json_object_get(o, key);

	if (json_is_string(v)) {
		pfx_ctl_put_text(json_string_value(v), json_string_length(v), columns);
	}
}

void pfx_ctl_clean(struct pfx_buf *out, const char *text, size_t n, int columns)
{
	int used = 0;

	while (n > 0) {
		uint32_t cp = 0;
		int len = pfx_utf8_next(text, n, &cp);
		int wide = len > 0 ? wcwidth((wchar_t)cp) : -1;
		size_t bytes = (size_t)abs(len);

		/* Controls, what is no character, and what the terminal may not know how to place. */
		if (wide < 0) {
			wide = 1;
			cp = 0;
		}
		if (columns > 0 && used + wide > columns - (n > bytes)) {
			pfx_buf_adds(out, "…");
			return;
		}
		if (cp == 0) {
			pfx_buf_adds(out, "·");
		} else {
			pfx_buf_add(out, text, bytes);
		}
		used += wide;
		text += bytes;
		n -= bytes;
	}
}

void pfx_ctl_put_text(const char *text, size_t n, int columns)
{
	struct pfx_buf clean = PFX_BUF_INIT;

	pfx_ctl_clean(&clean, text, n, columns);
	if (clean.len > 0) {
		fwrite(clean.data, 1, clean.len, stdout);
	}
	pfx_buf_free(&clean);
}

static int is_bytes(const char *key)
{
	size_t n = strlen(key);

	return strcmp(key, "bytes_max") == 0 || strcmp(key, "max_bytes") == 0 ||
		(n >= 5 && strcmp(key + n - 5, "bytes") == 0);
}

/* name  value, one a line; what is nested gets dotted names. */
static void tell_fields(const json_t *o, const char *prefix)
{
	const char *key;
	json_t *v;

	json_object_foreach((json_t *)o, key, v) {
		char name[256];

		snprintf(name, sizeof(name), "%s%s%s", prefix, *prefix == 0 ? "" : ".", key);
		if (json_is_object(v)) {
			tell_fields(v, name);
		} else if (json_is_string(v)) {
			printf("%-40s %s\n", name, json_string_value(v));
		} else if (strcmp(name, "id") != 0) {
			char *text = json_dumps(v, JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(6));

			printf("%-40s %s", name, text);
			if (is_bytes(key) && json_integer_value(v) >= 10240) {
				fputs(" (", stdout);
				pfx_ctl_put_bytes(json_integer_value(v));
				fputs(")", stdout);
			}
			puts("");
			free(text);
		}
	}
}

int pfx_ctl_tell_all(const struct pfx_ctl *ctl, const json_t *reply)
{
	json_t *copy = json_copy((json_t *)reply);

	json_object_del(copy, "event");
	tell_fields(copy, "");
	json_decref(copy);
	return 0;
}

int pfx_ctl_tell_event(const struct pfx_ctl *ctl, const json_t *reply)
{
	puts(json_string_value(json_object_get(reply, "event")));
	return 0;
}

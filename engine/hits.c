#include "engine/hits.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/rng.h"
#include "base/utf8.h"

#define MINUTE_NS 60000000000ull

/* A counted name: an owner alone, or an owner's prefix. */
struct named_row {
	uint64_t since_ns, used_ns;
	struct pfx_owner owner;
	struct pfx_name name;
	struct pfx_hits_row row;
};

struct name_table {
	uint64_t keys[PFX_HITS_NAMES]; /* apart from the rows: looked through at each request */
	struct named_row *rows;
	uint32_t n;
	struct pfx_hits_row others; /* of rows that made room for new ones */
	uint32_t n_others;
};

struct minute_row {
	uint64_t minute; /* since 1970 */
	struct pfx_hits_row row;
};

struct pfx_hits {
	uint64_t since_ns;
	struct pfx_hits_row total;
	struct name_table owners, named;
	struct minute_row *minutes; /* PFX_HITS_MINUTES, by minute modulo their number */
};

void pfx_name_set(struct pfx_name *out, const char *text, size_t len)
{
	out->is_cut = len > PFX_NAME_MAX;
	len = out->is_cut ? PFX_NAME_MAX : len;
	while (out->is_cut && len > 0 && pfx_utf8_valid_len(text, len) != len) {
		len--;
	}
	out->len = (uint8_t)len;
	if (len > 0) {
		memcpy(out->text, text, len);
	}
}

int pfx_name_equal(const struct pfx_name *a, const struct pfx_name *b)
{
	return a->len == b->len && memcmp(a->text, b->text, a->len) == 0;
}

json_t *pfx_name_json(const struct pfx_name *name)
{
	char text[PFX_NAME_MAX + 4];

	memcpy(text, name->text, name->len);
	memcpy(text + name->len, "…", 3);
	return json_stringn(text, name->len + (name->is_cut ? 3u : 0u));
}

void pfx_hits_sum(struct pfx_hits_row *to, const struct pfx_hits_row *from)
{
	to->requests += from->requests;
	to->prompt += from->prompt;
	to->computed += from->computed;
	for (int i = 0; i < PFX_HITS_TIERS; i++) {
		to->cached[i] += from->cached[i];
	}
	to->blocks += from->blocks;
	to->blocks_hit += from->blocks_hit;
	to->ceiling += from->ceiling;
	to->ceiling_of += from->ceiling_of;
}

static void put_rate(struct pfx_buf *b, uint64_t part, uint64_t whole)
{
	if (whole == 0) {
		pfx_buf_adds(b, "null");
	} else {
		pfx_buf_addf(b, "%.6f", (double)part / (double)whole);
	}
}

void pfx_hits_row_put(struct pfx_buf *b, const struct pfx_hits_row *row)
{
	const uint64_t *t = row->cached;
	uint64_t cached = t[PFX_HITS_DEVICE] + t[PFX_HITS_HOST] + t[PFX_HITS_DISK];

	pfx_buf_addf(b, "\"requests\":%" PRIu64 ",\"prompt_tokens\":%" PRIu64
		",\"cached_tokens\":%" PRIu64 ",\"computed_tokens\":%" PRIu64
		",\"cached\":{\"device\":%" PRIu64 ",\"host\":%" PRIu64 ",\"disk\":%" PRIu64
		"},\"hit_rate\":", row->requests, row->prompt, cached, row->computed,
		t[PFX_HITS_DEVICE], t[PFX_HITS_HOST], t[PFX_HITS_DISK]);
	put_rate(b, cached, row->prompt);
	pfx_buf_adds(b, ",\"ceiling\":");
	put_rate(b, row->ceiling, row->ceiling_of);
	pfx_buf_addf(b, ",\"ceiling_tokens\":{\"hit\":%" PRIu64 ",\"of\":%" PRIu64
		"},\"blocks\":{\"hit\":%" PRIu64 ",\"of\":%" PRIu64 ",\"hit_rate\":", row->ceiling,
		row->ceiling_of, row->blocks_hit, row->blocks);
	put_rate(b, row->blocks_hit, row->blocks);
	pfx_buf_addc(b, '}');
}

void pfx_json_put(struct pfx_buf *b, json_t *value)
{
	char *text = value == NULL ? NULL : json_dumps(value, JSON_ENCODE_ANY);

	if (text == NULL) {
		b->oom = 1;
	} else {
		pfx_buf_adds(b, text);
	}
	free(text);
	json_decref(value);
}

void pfx_name_put(struct pfx_buf *b, const struct pfx_name *name)
{
	pfx_json_put(b, pfx_name_json(name));
}

void pfx_owner_put(struct pfx_buf *b, const struct pfx_owner *owner)
{
	pfx_buf_adds(b, "\"namespace\":");
	pfx_name_put(b, &owner->space);
	pfx_buf_adds(b, ",\"salt\":");
	pfx_name_put(b, &owner->salt);
}

/* ---- names ---- */

/*
 * The row of that key, a fresh one if need be. When all are taken the one with the fewest
 * requests makes room, of equals the longest unused: names that come once replace each
 * other, and never what is in use.
 */
static struct named_row *row_of(struct name_table *t, uint64_t key, uint64_t wall_ns)
{
	uint32_t at = 0;

	for (uint32_t i = 0; i < t->n; i++) {
		if (t->keys[i] == key) {
			return &t->rows[i];
		}
	}
	if (t->n < PFX_HITS_NAMES) {
		at = t->n++;
	} else {
		for (uint32_t i = 1; i < t->n; i++) {
			const struct named_row *r = &t->rows[i], *least = &t->rows[at];

			if (r->row.requests < least->row.requests ||
				(r->row.requests == least->row.requests && r->used_ns < least->used_ns)) {
				at = i;
			}
		}
		pfx_hits_sum(&t->others, &t->rows[at].row);
		t->n_others++;
	}
	memset(&t->rows[at], 0, sizeof(t->rows[at]));
	t->keys[at] = key;
	t->rows[at].since_ns = wall_ns;
	return &t->rows[at];
}

static uint64_t named_key(const struct pfx_owner *owner, const struct pfx_name *name)
{
	uint64_t h = owner->key;

	for (uint32_t i = 0; i < name->len; i++) {
		h = pfx_rng_mix(h, (uint8_t)name->text[i]);
	}
	return h | 1;
}

static void put_named(struct pfx_buf *b, const struct named_row *r, int with_name)
{
	pfx_buf_addc(b, '{');
	if (with_name) {
		pfx_buf_adds(b, "\"name\":");
		pfx_name_put(b, &r->name);
		pfx_buf_addc(b, ',');
	}
	pfx_owner_put(b, &r->owner);
	pfx_buf_addf(b, ",\"since_ms\":%" PRIu64 ",", r->since_ns / 1000000u);
	pfx_hits_row_put(b, &r->row);
	pfx_buf_addc(b, '}');
}

static int more_requests_first(const void *a, const void *b)
{
	const struct named_row *x = *(const struct named_row *const *)a;
	const struct named_row *y = *(const struct named_row *const *)b;

	return x->row.requests != y->row.requests
		? (x->row.requests < y->row.requests) - (x->row.requests > y->row.requests)
		: (x > y) - (x < y);
}

/* The first `most` rows, and all others as one. */
static void put_table(struct pfx_buf *b, const struct name_table *t, uint32_t most, int with_name)
{
	const struct named_row *order[PFX_HITS_NAMES];
	struct pfx_hits_row others = t->others;
	uint32_t n_others = t->n_others;

	for (uint32_t i = 0; i < t->n; i++) {
		order[i] = &t->rows[i];
	}
	qsort(order, t->n, sizeof(*order), more_requests_first);
	pfx_buf_addf(b, "\"%s\":[", with_name ? "named" : "namespaces");
	for (uint32_t i = 0; i < t->n; i++) {
		if (i < most) {
			pfx_buf_adds(b, i == 0 ? "" : ",");
			put_named(b, order[i], with_name);
		} else {
			pfx_hits_sum(&others, &order[i]->row);
			n_others++;
		}
	}
	pfx_buf_addf(b, "],\"%s\":{\"names\":%u,", with_name ? "named_others" : "others", n_others);
	pfx_hits_row_put(b, &others);
	pfx_buf_addc(b, '}');
}

const struct pfx_owner *pfx_hits_owner(const struct pfx_hits *h, uint64_t key)
{
	for (uint32_t i = 0; i < h->owners.n; i++) {
		if (h->owners.keys[i] == key) {
			return &h->owners.rows[i].owner;
		}
	}
	return NULL;
}

/* ---- all of it ---- */

int pfx_hits_open(struct pfx_hits **out, uint64_t wall_ns)
{
	struct pfx_hits *h = pfx_calloc(1, sizeof(*h));

	if (h == NULL) {
		return -ENOMEM;
	}
	h->since_ns = wall_ns;
	h->owners.rows = pfx_calloc(PFX_HITS_NAMES, sizeof(*h->owners.rows));
	h->named.rows = pfx_calloc(PFX_HITS_NAMES, sizeof(*h->named.rows));
	h->minutes = pfx_calloc(PFX_HITS_MINUTES, sizeof(*h->minutes));
	if (h->owners.rows == NULL || h->named.rows == NULL || h->minutes == NULL) {
		pfx_hits_close(h);
		return -ENOMEM;
	}
	*out = h;
	return 0;
}

void pfx_hits_close(struct pfx_hits *h)
{
	if (h == NULL) {
		return;
	}
	pfx_free(h->owners.rows);
	pfx_free(h->named.rows);
	pfx_free(h->minutes);
	pfx_free(h);
}

void pfx_hits_add(struct pfx_hits *h, const struct pfx_owner *owner, const struct pfx_name *named,
	const struct pfx_hits_row *row, uint64_t wall_ns)
{
	uint64_t minute = wall_ns / MINUTE_NS;
	struct minute_row *m = &h->minutes[minute % PFX_HITS_MINUTES];
	struct named_row *r = row_of(&h->owners, owner->key, wall_ns);

	pfx_hits_sum(&h->total, row);
	r->owner = *owner;
	r->used_ns = wall_ns;
	pfx_hits_sum(&r->row, row);
	if (named != NULL) {
		r = row_of(&h->named, named_key(owner, named), wall_ns);
		r->owner = *owner;
		r->name = *named;
		r->used_ns = wall_ns;
		pfx_hits_sum(&r->row, row);
	}
	if (m->minute != minute) {
		memset(m, 0, sizeof(*m));
		m->minute = minute;
	}
	pfx_hits_sum(&m->row, row);
}

void pfx_hits_window(const struct pfx_hits *h, uint32_t minutes, uint64_t wall_ns,
	struct pfx_hits_row *out)
{
	uint64_t now = wall_ns / MINUTE_NS;

	memset(out, 0, sizeof(*out));
	for (uint32_t i = 0; i < PFX_HITS_MINUTES; i++) {
		if (h->minutes[i].minute + minutes > now && h->minutes[i].minute <= now) {
			pfx_hits_sum(out, &h->minutes[i].row);
		}
	}
}

static void put_minutes(struct pfx_buf *b, const struct pfx_hits *h, uint32_t minutes,
	uint64_t wall_ns)
{
	uint64_t now = wall_ns / MINUTE_NS, first = now + 1 > minutes ? now + 1 - minutes : 0;
	int n = 0;

	pfx_buf_adds(b, "\"minutes\":[");
	for (uint64_t at = first; at <= now; at++) {
		const struct minute_row *m = &h->minutes[at % PFX_HITS_MINUTES];

		if (m->minute == at && m->row.requests > 0) {
			pfx_buf_addf(b, "%s{\"time_ms\":%" PRIu64 ",", n++ == 0 ? "" : ",", at * 60000u);
			pfx_hits_row_put(b, &m->row);
			pfx_buf_addc(b, '}');
		}
	}
	pfx_buf_addc(b, ']');
}

void pfx_hits_put(struct pfx_buf *b, const struct pfx_hits *h, uint32_t names, uint32_t minutes,
	uint64_t wall_ns)
{
	pfx_buf_addf(b, "\"since_ms\":%" PRIu64 ",\"time_ms\":%" PRIu64 ",\"total\":{",
		h->since_ns / 1000000u, wall_ns / 1000000u);
	pfx_hits_row_put(b, &h->total);
	pfx_buf_adds(b, "},");
	put_table(b, &h->owners, names, 0);
	pfx_buf_addc(b, ',');
	put_table(b, &h->named, names, 1);
	pfx_buf_addc(b, ',');
	put_minutes(b, h, minutes, wall_ns);
}

const struct pfx_hits_row *pfx_hits_total(const struct pfx_hits *h)
{
	return &h->total;
}

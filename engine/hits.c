#include "engine/hits.h"

#include <errno.h>
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

static json_t *num(uint64_t n)
{
	return json_integer((json_int_t)n);
}

static json_t *rate(uint64_t part, uint64_t whole)
{
	return whole == 0 ? json_null() : json_real((double)part / (double)whole);
}

void pfx_hits_row_json(json_t *o, const struct pfx_hits_row *row)
{
	uint64_t cached = row->cached[PFX_HITS_DEVICE] + row->cached[PFX_HITS_HOST] +
		row->cached[PFX_HITS_DISK];

	json_object_set_new(o, "requests", num(row->requests));
	json_object_set_new(o, "prompt_tokens", num(row->prompt));
	json_object_set_new(o, "cached_tokens", num(cached));
	json_object_set_new(o, "computed_tokens", num(row->computed));
	json_object_set_new(o, "cached", json_pack("{s:o,s:o,s:o}", "device",
		num(row->cached[PFX_HITS_DEVICE]), "host", num(row->cached[PFX_HITS_HOST]), "disk",
		num(row->cached[PFX_HITS_DISK])));
	json_object_set_new(o, "hit_rate", rate(cached, row->prompt));
	json_object_set_new(o, "ceiling", rate(row->ceiling, row->ceiling_of));
	json_object_set_new(o, "ceiling_tokens", json_pack("{s:o,s:o}", "hit", num(row->ceiling),
		"of", num(row->ceiling_of)));
	json_object_set_new(o, "blocks", json_pack("{s:o,s:o,s:o}", "hit", num(row->blocks_hit),
		"of", num(row->blocks), "hit_rate", rate(row->blocks_hit, row->blocks)));
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

static json_t *named_json(const struct named_row *r, int with_name)
{
	json_t *o = json_object();

	if (with_name) {
		json_object_set_new(o, "name", pfx_name_json(&r->name));
	}
	json_object_set_new(o, "namespace", pfx_name_json(&r->owner.space));
	json_object_set_new(o, "salt", pfx_name_json(&r->owner.salt));
	json_object_set_new(o, "since_ms", num(r->since_ns / 1000000u));
	pfx_hits_row_json(o, &r->row);
	return o;
}

static json_t *table_json(const struct name_table *t, int with_name)
{
	json_t *list = json_array();

	for (uint32_t i = 0; i < t->n; i++) {
		json_array_append_new(list, named_json(&t->rows[i], with_name));
	}
	return list;
}

static json_t *others_json(const struct name_table *t)
{
	json_t *o = json_pack("{s:o}", "names", num(t->n_others));

	pfx_hits_row_json(o, &t->others);
	return o;
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

static json_t *minutes_json(const struct pfx_hits *h, uint32_t minutes, uint64_t wall_ns)
{
	uint64_t now = wall_ns / MINUTE_NS, first = now + 1 > minutes ? now + 1 - minutes : 0;
	json_t *list = json_array();

	for (uint64_t at = first; at <= now; at++) {
		const struct minute_row *m = &h->minutes[at % PFX_HITS_MINUTES];
		json_t *o;

		if (m->minute != at || m->row.requests == 0) {
			continue;
		}
		o = json_pack("{s:o}", "time_ms", num(at * 60000));
		pfx_hits_row_json(o, &m->row);
		json_array_append_new(list, o);
	}
	return list;
}

json_t *pfx_hits_json(const struct pfx_hits *h, uint32_t minutes, uint64_t wall_ns)
{
	json_t *total = json_object();

	pfx_hits_row_json(total, &h->total);
	return json_pack("{s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:o}", "since_ms",
		num(h->since_ns / 1000000u), "time_ms", num(wall_ns / 1000000u), "total", total, "namespaces",
		table_json(&h->owners, 0), "others", others_json(&h->owners), "named",
		table_json(&h->named, 1), "named_others", others_json(&h->named), "minutes",
		minutes_json(h, minutes, wall_ns));
}

#include "tools/trace.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/rng.h"

#define NOTHING UINT32_MAX /* an empty slot */
/* Before a request's first block stands its namespace: a number from here on. */
#define NAMES 0x80000000u

struct pfx_trace_slot {
	uint64_t id;
	uint32_t before;
	uint32_t number; /* NOTHING: empty */
};

struct pfx_trace_name {
	struct pfx_trace_name *next;
	uint64_t hash;
	uint32_t number;
	uint32_t within; /* a session: its namespace; a namespace: NOTHING */
	size_t len;
	char text[];
};

static struct pfx_trace_slot *slot_of(const struct pfx_trace *t, uint32_t before, uint64_t id)
{
	uint64_t at = pfx_rng_mix(id, before);

	for (;; at++) {
		struct pfx_trace_slot *s = &t->slots[at & (t->n_slots - 1)];

		if (s->number == NOTHING || (s->before == before && s->id == id)) {
			return s;
		}
	}
}

/* Room in the table for so many more, at most half of it full. */
static int grow_slots(struct pfx_trace *t, uint64_t more)
{
	uint64_t want = (t->n_distinct + more) * 2, n = t->n_slots > 0 ? t->n_slots : 1024;
	struct pfx_trace_slot *old = t->slots;
	uint32_t n_old = t->n_slots;

	if (want <= t->n_slots) {
		return 0;
	}
	while (n < want) {
		n *= 2;
	}
	if (n > 1u << 31) {
		return PFX_E_LIMIT;
	}
	t->slots = pfx_malloc(n * sizeof(*t->slots));
	if (t->slots == NULL) {
		t->slots = old;
		return -ENOMEM;
	}
	memset(t->slots, 0xff, n * sizeof(*t->slots));
	t->n_slots = (uint32_t)n;
	for (uint32_t i = 0; i < n_old; i++) {
		if (old[i].number != NOTHING) {
			*slot_of(t, old[i].before, old[i].id) = old[i];
		}
	}
	pfx_free(old);
	return 0;
}

/* ---- names ---- */

static void rehash_names(struct pfx_trace *t)
{
	uint32_t n = t->n_name_slots > 0 ? t->n_name_slots * 2 : 64;
	struct pfx_trace_name **slots = pfx_calloc(n, sizeof(struct pfx_trace_name *));

	if (slots == NULL) {
		return; /* longer chains, or none at first: then the next look finds no room */
	}
	for (uint32_t i = 0; i < t->n_name_slots; i++) {
		struct pfx_trace_name *x, *next;

		for (x = t->names[i]; x != NULL; x = next) {
			next = x->next;
			x->next = slots[x->hash & (n - 1)];
			slots[x->hash & (n - 1)] = x;
		}
	}
	pfx_free(t->names);
	t->names = slots;
	t->n_name_slots = n;
}

/* The number of a name, a new one if need be. -ENOMEM, PFX_E_LIMIT. */
static int64_t number_of(struct pfx_trace *t, uint32_t within, const char *text, size_t len)
{
	uint64_t hash = pfx_rng_mix(len, within);
	struct pfx_trace_name *x;

	for (size_t i = 0; i < len; i++) {
		hash = pfx_rng_mix(hash, (unsigned char)text[i]);
	}
	if (t->n_names >= t->n_name_slots) {
		rehash_names(t);
	}
	if (t->n_name_slots == 0) {
		return -ENOMEM;
	}
	for (x = t->names[hash & (t->n_name_slots - 1)]; x != NULL; x = x->next) {
		if (x->hash == hash && x->within == within && x->len == len &&
			memcmp(x->text, text, len) == 0) {
			return x->number;
		}
	}
	if (t->n_names >= NAMES - 2) {
		return PFX_E_LIMIT;
	}
	x = pfx_malloc(sizeof(*x) + len + 1);
	if (x == NULL) {
		return -ENOMEM;
	}
	*x = (struct pfx_trace_name){ t->names[hash & (t->n_name_slots - 1)], hash, t->n_names++,
		within, len };
	memcpy(x->text, text, len);
	t->names[hash & (t->n_name_slots - 1)] = x;
	return x->number;
}

/* Of a field that holds a string or an integer; `none` when it holds neither. */
static int64_t name_in(struct pfx_trace *t, const json_t *root, const char *field, uint32_t within,
	uint32_t none)
{
	const json_t *name = json_object_get(root, field);
	char text[32];

	if (json_is_integer(name)) {
		int n = snprintf(text, sizeof(text), "%lld", (long long)json_integer_value(name));

		return number_of(t, within, text, (size_t)n);
	}
	if (json_is_string(name) && json_string_length(name) > 0) {
		return number_of(t, within, json_string_value(name), json_string_length(name));
	}
	return none;
}

/* ---- requests ---- */

static int grow_arrays(struct pfx_trace *t, uint64_t more)
{
	uint64_t blocks = pfx_trace_refs(t) + more, requests = (uint64_t)t->n_requests + 2;

	if (blocks > t->cap_blocks) {
		uint64_t cap = blocks + blocks / 2;
		uint32_t *p = pfx_reallocarray(t->blocks, cap, sizeof(*p));

		if (p == NULL) {
			return -ENOMEM;
		}
		t->blocks = p;
		t->cap_blocks = cap;
	}
	if (requests > t->cap_requests) {
		uint64_t cap = requests + requests / 2;
		uint64_t *first = pfx_reallocarray(t->first, cap, sizeof(*first));
		struct pfx_trace_row *rows;

		if (first == NULL) {
			return -ENOMEM;
		}
		t->first = first;
		rows = pfx_reallocarray(t->rows, cap, sizeof(*rows));
		if (rows == NULL) {
			return -ENOMEM;
		}
		t->rows = rows;
		t->cap_requests = cap;
	}
	return 0;
}

static int check_ids(const json_t *ids, char *err, size_t errlen)
{
	size_t i;
	json_t *id;

	json_array_foreach((json_t *)ids, i, id) {
		if (!json_is_integer(id) || json_integer_value(id) < 0) {
			return pfx_fail(PFX_E_FORMAT, err, errlen,
				"hash_ids[%zu] is not an integer of 0 or more", i);
		}
	}
	return 0;
}

static uint32_t length_of(const json_t *root, const char *field)
{
	json_int_t n = json_integer_value(json_object_get(root, field));

	return n < 0 ? 0 : n < UINT32_MAX ? (uint32_t)n : UINT32_MAX;
}

static void add_request(struct pfx_trace *t, const json_t *root, const json_t *ids,
	uint32_t namespace, uint32_t session)
{
	uint64_t at = pfx_trace_refs(t);
	uint32_t before = NAMES + namespace, n = (uint32_t)json_array_size(ids);
	struct pfx_trace_row *row = &t->rows[t->n_requests];

	*row = (struct pfx_trace_row){
		.input = length_of(root, "input_length"),
		.reply = length_of(root, "output_length"),
		.session = session,
		.conversation = session,
		.last_turn = json_is_true(json_object_get(root, "last_turn")),
	};
	t->n_last_turns += row->last_turn;
	t->first[t->n_requests] = at;
	for (uint32_t i = 0; i < n; i++) {
		uint64_t id = (uint64_t)json_integer_value(json_array_get(ids, i));
		struct pfx_trace_slot *s = slot_of(t, before, id);

		if (s->number == NOTHING) {
			*s = (struct pfx_trace_slot){ id, before, t->n_distinct++ };
		}
		before = t->blocks[at + i] = s->number;
	}
	t->first[++t->n_requests] = at + n;
	t->n_blocks_max = n > t->n_blocks_max ? n : t->n_blocks_max;
}

/* Everything that may fail comes before anything that a reader could see. */
static int add_row(struct pfx_trace *t, const json_t *root, const json_t *ids)
{
	int64_t namespace, session;
	int rc;

	if (t->n_requests == NOTHING - 1) {
		return PFX_E_LIMIT;
	}
	rc = grow_slots(t, json_array_size(ids));
	rc = rc < 0 ? rc : grow_arrays(t, json_array_size(ids));
	if (rc < 0) {
		return rc;
	}
	namespace = name_in(t, root, "namespace", NOTHING, NAMES - 1);
	session = namespace < 0 ? namespace
		: name_in(t, root, "session", (uint32_t)namespace, PFX_TRACE_NONE);
	if (session < 0) {
		return (int)session;
	}
	add_request(t, root, ids, (uint32_t)namespace, (uint32_t)session);
	return 0;
}

int pfx_trace_add(struct pfx_trace *t, const char *line, size_t n, char *err, size_t errlen)
{
	json_error_t why;
	const json_t *ids;
	json_t *root;
	int rc;

	if (strspn(line, " \t\r") >= n) {
		return 0;
	}
	root = json_loadb(line, n, 0, &why);
	ids = json_object_get(root, "hash_ids");
	if (!json_is_object(root)) {
		rc = pfx_fail(PFX_E_FORMAT, err, errlen, "not a JSON object%s%s",
			root == NULL ? ": " : "", root == NULL ? why.text : "");
	} else if (!json_is_array(ids)) {
		rc = pfx_fail(PFX_E_FORMAT, err, errlen, "no array \"hash_ids\"");
	} else if ((rc = check_ids(ids, err, errlen)) == 0 && (rc = add_row(t, root, ids)) < 0) {
		pfx_fail(rc, err, errlen, "%s", rc == PFX_E_LIMIT ? "too many blocks" : pfx_strerror(rc));
	}
	json_decref(root);
	return rc;
}

static int load_lines(struct pfx_trace *t, FILE *f, const char *path, char *err, size_t errlen)
{
	char why[200], *line = NULL;
	size_t room = 0;
	ssize_t n;
	uint64_t at = 0;
	int rc = 0;

	while (rc == 0 && (n = getline(&line, &room, f)) >= 0) {
		at++;
		if (n > 0 && line[n - 1] == '\n') {
			line[--n] = '\0';
		}
		if ((size_t)n > PFX_TRACE_LINE_MAX) {
			rc = pfx_fail(PFX_E_LIMIT, why, sizeof(why), "the line is too long");
		} else {
			rc = pfx_trace_add(t, line, (size_t)n, why, sizeof(why));
		}
	}
	if (rc < 0) {
		pfx_fail(rc, err, errlen, "%s:%llu: %s", path, (unsigned long long)at, why);
	} else if (ferror(f)) {
		rc = pfx_fail(-errno, err, errlen, "%s: %s", path, strerror(errno));
	} else if (pfx_trace_refs(t) == 0) {
		rc = pfx_fail(PFX_E_FORMAT, err, errlen, "%s: there are no blocks in it", path);
	}
	free(line);
	return rc;
}

int pfx_trace_load(struct pfx_trace *t, const char *path, char *err, size_t errlen)
{
	int is_stdin = strcmp(path, "-") == 0;
	FILE *f = is_stdin ? stdin : fopen(path, "rb");
	int rc;

	if (f == NULL) {
		return pfx_fail(-errno, err, errlen, "%s: %s", path, strerror(errno));
	}
	rc = load_lines(t, f, path, err, errlen);
	if (!is_stdin) {
		fclose(f);
	}
	return rc;
}

void pfx_trace_free(struct pfx_trace *t)
{
	pfx_free(t->blocks);
	pfx_free(t->first);
	pfx_free(t->rows);
	pfx_free(t->slots);
	for (uint32_t i = 0; i < t->n_name_slots; i++) {
		struct pfx_trace_name *x, *next;

		for (x = t->names[i]; x != NULL; x = next) {
			next = x->next;
			pfx_free(x);
		}
	}
	pfx_free(t->names);
	*t = (struct pfx_trace)PFX_TRACE_INIT;
}

/* ---- the size of a block ---- */

/*
 * n blocks of an input of so many tokens: rounded up (partial = 1: a last, partly filled block
 * has an id), B lies in [input / n, (input - 1) / (n - 1)]; rounded down, in
 * (input / (n + 1), input / n].
 */
static uint32_t fits_all(const struct pfx_trace *t, int partial)
{
	uint64_t low = 1, high = UINT32_MAX / 2, power = 1;
	int said = 0;

	for (uint32_t i = 0; i < t->n_requests; i++) {
		uint64_t n = pfx_trace_n_blocks(t, i), input = t->rows[i].input, least, most;

		if (n == 0 || input == 0) {
			continue;
		}
		said |= n > 1;
		least = partial ? (input + n - 1) / n : input / (n + 1) + 1;
		most = !partial ? input / n : n > 1 ? (input - 1) / (n - 1) : high;
		low = least > low ? least : low;
		high = most < high ? most : high;
	}
	while (power < low) {
		power *= 2;
	}
	return !said || low > high ? 0 : (uint32_t)(power <= high ? power : low);
}

uint32_t pfx_trace_block_tokens(const struct pfx_trace *t)
{
	uint32_t size = fits_all(t, 1);

	return size > 0 ? size : fits_all(t, 0);
}

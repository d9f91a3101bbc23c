#include "tools/trace.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/rng.h"

#define NOTHING UINT32_MAX /* the block before a request's first; an empty slot */

struct pfx_trace_slot {
	uint64_t id;
	uint32_t before;
	uint32_t number; /* NOTHING: empty */
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
		uint32_t *reply;

		if (first == NULL) {
			return -ENOMEM;
		}
		t->first = first;
		reply = pfx_reallocarray(t->reply, cap, sizeof(*reply));
		if (reply == NULL) {
			return -ENOMEM;
		}
		t->reply = reply;
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

static void add_request(struct pfx_trace *t, const json_t *ids, json_int_t reply)
{
	uint64_t at = pfx_trace_refs(t);
	uint32_t before = NOTHING, n = (uint32_t)json_array_size(ids);

	t->first[t->n_requests] = at;
	t->reply[t->n_requests] = reply < 0 ? 0 : reply < UINT32_MAX ? (uint32_t)reply : UINT32_MAX;
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
	} else if ((rc = check_ids(ids, err, errlen)) == 0) {
		rc = t->n_requests == NOTHING - 1 ? PFX_E_LIMIT : grow_slots(t, json_array_size(ids));
		rc = rc < 0 ? rc : grow_arrays(t, json_array_size(ids));
		if (rc == 0) {
			add_request(t, ids, json_integer_value(json_object_get(root, "output_length")));
		} else {
			pfx_fail(rc, err, errlen, "%s",
				rc == PFX_E_LIMIT ? "too many blocks" : pfx_strerror(rc));
		}
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
	pfx_free(t->reply);
	pfx_free(t->slots);
	*t = (struct pfx_trace)PFX_TRACE_INIT;
}

#include "engine/session.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/list.h"
#include "base/rng.h"
#include "engine/content.h"

/* Looks for what has expired at most so often: it walks all sessions. */
#define SWEEP_NS 1000000000u

struct pfx_sessions {
	struct pfx_sessions_opts opts;
	pthread_mutex_t lock;
	struct pfx_map map;
	struct pfx_quota quota;
	uint64_t swept_ns;
	struct pfx_sessions_stats n;
};

int pfx_sessions_open(struct pfx_sessions **out, const struct pfx_sessions_opts *opts)
{
	struct pfx_sessions *t = pfx_calloc(1, sizeof(*t));

	if (t == NULL) {
		return -ENOMEM;
	}
	t->opts = *opts;
	pthread_mutex_init(&t->lock, NULL);
	if (pfx_map_init(&t->map) != 0 || pfx_quota_init(&t->quota) != 0) {
		pfx_sessions_close(t);
		return -ENOMEM;
	}
	*out = t;
	return 0;
}

void pfx_seen_free(struct pfx_seen *s)
{
	pfx_free(s->ids.v);
	pfx_buf_free(&s->text);
	pfx_free(s->specials);
	memset(s, 0, sizeof(*s));
}

static void session_free(struct pfx_session *s)
{
	json_decref(s->messages);
	json_decref(s->tools);
	json_decref(s->documents);
	json_decref(s->kwargs);
	pfx_seen_free(&s->seen);
	pfx_key_free(&s->key);
	pfx_free(s);
}

void pfx_sessions_close(struct pfx_sessions *t)
{
	struct pfx_map_node *it, *next;
	size_t slot = 0;

	if (t == NULL) {
		return;
	}
	for (it = pfx_map_next(&t->map, NULL, &slot); it != NULL; it = next) {
		next = pfx_map_next(&t->map, it, &slot);
		session_free(pfx_container_of(it, struct pfx_session, node));
	}
	pfx_map_free(&t->map);
	pfx_quota_free(&t->quota);
	pthread_mutex_destroy(&t->lock);
	pfx_free(t);
}

/* ---- the table ---- */

static void remove_locked(struct pfx_sessions *t, struct pfx_session *s)
{
	pfx_map_remove(&t->map, &s->node);
	pfx_quota_give(&t->quota, &s->key);
	t->n.bytes -= s->bytes;
	t->n.n--;
}

static int has_expired(const struct pfx_session *s, uint64_t now)
{
	return !s->in_turn && now >= s->idle_ns && now - s->idle_ns >= s->ttl_ns;
}

static struct pfx_session *find_locked(struct pfx_sessions *t, const struct pfx_key *key,
	uint64_t now)
{
	struct pfx_map_node *it = pfx_map_find(&t->map, key->data, key->len);
	struct pfx_session *s = it == NULL ? NULL : pfx_container_of(it, struct pfx_session, node);

	if (s != NULL && has_expired(s, now)) {
		remove_locked(t, s);
		t->n.expired++;
		session_free(s);
		s = NULL;
	}
	return s;
}

static void sweep_locked(struct pfx_sessions *t, uint64_t now)
{
	struct pfx_map_node *it, *next;
	size_t slot = 0;

	if (now - t->swept_ns < SWEEP_NS) {
		return;
	}
	t->swept_ns = now;
	for (it = pfx_map_next(&t->map, NULL, &slot); it != NULL; it = next) {
		struct pfx_session *s = pfx_container_of(it, struct pfx_session, node);
		next = pfx_map_next(&t->map, it, &slot);
		if (has_expired(s, now)) {
			remove_locked(t, s);
			t->n.expired++;
			session_free(s);
		}
	}
}

/* The key with a name that is not in the table. */
static int name_locked(struct pfx_sessions *t, const struct pfx_key *key, struct pfx_key *out)
{
	char name[40];
	size_t len;

	*out = *key;
	if (key->len > key->head) {
		out->data = pfx_memdup(key->data, key->len);
		return out->data == NULL ? -ENOMEM : 0;
	}
	len = (size_t)snprintf(name, sizeof(name), "s-%016llx%016llx",
		(unsigned long long)pfx_rng_entropy(), (unsigned long long)pfx_rng_entropy());
	out->data = pfx_malloc(key->head + len);
	if (out->data == NULL) {
		return -ENOMEM;
	}
	memcpy(out->data, key->data, key->head);
	memcpy(out->data + key->head, name, len);
	out->len = key->head + len;
	return pfx_map_find(&t->map, out->data, out->len) == NULL ? 0 : -EEXIST;
}

static int make_locked(struct pfx_sessions *t, const struct pfx_key *key, uint64_t now,
	struct pfx_session **out, char *err, size_t errlen)
{
	struct pfx_session *s;
	int rc;

	sweep_locked(t, now);
	if (find_locked(t, key, now) != NULL) {
		return -EEXIST;
	}
	if (t->n.n >= t->opts.n_max) {
		return pfx_fail(PFX_E_FULL, err, errlen, "%u sessions are open already, as many as the "
			"server keeps", t->n.n);
	}
	rc = pfx_quota_take(&t->quota, key, t->opts.n_space_max);
	if (rc != 0) {
		return pfx_fail(rc, err, errlen, "the namespace has %u sessions open already, as many as "
			"it may", t->opts.n_space_max);
	}
	s = pfx_calloc(1, sizeof(*s));
	rc = s == NULL ? -ENOMEM : name_locked(t, key, &s->key);
	if (rc != 0) {
		pfx_quota_give(&t->quota, key);
		if (s != NULL) {
			session_free(s);
		}
		return rc;
	}
	s->node.key = s->key.data;
	s->node.key_len = s->key.len;
	s->in_turn = 1;
	s->ttl_ns = s->told.ttl_ns = t->opts.ttl_ns;
	s->opened_ns = s->idle_ns = now;
	s->bytes = sizeof(*s) + s->key.len;
	pfx_map_add(&t->map, &s->node);
	t->n.bytes += s->bytes;
	t->n.n++;
	t->n.opened++;
	*out = s;
	return 0;
}

int pfx_session_make(struct pfx_sessions *t, const struct pfx_key *key, uint64_t now,
	struct pfx_session **out, char *err, size_t errlen)
{
	int rc;

	pthread_mutex_lock(&t->lock);
	rc = make_locked(t, key, now, out, err, errlen);
	t->n.refused += rc == PFX_E_FULL;
	pthread_mutex_unlock(&t->lock);
	return rc;
}

struct pfx_session *pfx_session_begin(struct pfx_sessions *t, const struct pfx_key *key,
	uint64_t now)
{
	struct pfx_session *s;

	pthread_mutex_lock(&t->lock);
	s = find_locked(t, key, now);
	if (s != NULL && s->in_turn) {
		s = NULL; /* only without turns in order, which is a caller's bug */
	}
	if (s != NULL) {
		s->in_turn = 1;
		t->n.turns++;
	}
	pthread_mutex_unlock(&t->lock);
	return s;
}

int pfx_session_room(struct pfx_sessions *t, size_t bytes, char *err, size_t errlen)
{
	int rc = 0;

	pthread_mutex_lock(&t->lock);
	if (t->n.bytes + bytes > t->opts.bytes_max) {
		t->n.refused++;
		rc = pfx_fail(PFX_E_FULL, err, errlen, "sessions hold %llu of %llu bytes already; this "
			"turn has about %zu", (unsigned long long)t->n.bytes,
			(unsigned long long)t->opts.bytes_max, bytes);
	}
	pthread_mutex_unlock(&t->lock);
	return rc;
}

static size_t weigh(const struct pfx_session *s)
{
	return sizeof(*s) + s->key.len + s->json_bytes + s->seen.ids.cap * sizeof(*s->seen.ids.v) +
		s->seen.text.cap + s->seen.n_specials * sizeof(*s->seen.specials);
}

void pfx_session_end(struct pfx_sessions *t, struct pfx_session *s, uint64_t now)
{
	size_t bytes = weigh(s);

	pthread_mutex_lock(&t->lock);
	t->n.bytes += bytes - s->bytes;
	s->bytes = bytes;
	s->told.kind = s->kind;
	s->told.n_messages = json_array_size(s->messages);
	s->told.n_tokens = s->seen.ids.n;
	s->told.turns = s->turns;
	s->told.ttl_ns = s->ttl_ns;
	s->idle_ns = now;
	s->in_turn = 0;
	pthread_mutex_unlock(&t->lock);
}

void pfx_session_drop(struct pfx_sessions *t, struct pfx_session *s)
{
	pthread_mutex_lock(&t->lock);
	remove_locked(t, s);
	t->n.closed++;
	pthread_mutex_unlock(&t->lock);
	session_free(s);
}

size_t pfx_session_bytes(struct pfx_sessions *t, const struct pfx_key *key)
{
	struct pfx_map_node *it;
	size_t bytes;

	pthread_mutex_lock(&t->lock);
	it = pfx_map_find(&t->map, key->data, key->len);
	bytes = it == NULL ? 0 : pfx_container_of(it, struct pfx_session, node)->bytes;
	pthread_mutex_unlock(&t->lock);
	return bytes;
}

/* What a list says of a session, taken out of the table. */
struct row {
	struct pfx_key key; /* a copy */
	struct pfx_told told;
	size_t bytes;
	uint64_t idle_ns;
	int in_turn;
};

static int by_name(const void *a, const void *b)
{
	return pfx_key_by_name(&((const struct row *)a)->key, &((const struct row *)b)->key);
}

static size_t rows_locked(struct pfx_sessions *t, const struct pfx_key *of, int all, uint64_t now,
	struct row *rows)
{
	size_t slot = 0, n = 0;
	struct pfx_map_node *it = pfx_map_next(&t->map, NULL, &slot);

	for (; it != NULL; it = pfx_map_next(&t->map, it, &slot)) {
		const struct pfx_session *s = pfx_container_of(it, struct pfx_session, node);

		if (!pfx_key_within(&s->key, of, all) || has_expired(s, now)) {
			continue;
		}
		if (pfx_key_copy(&rows[n].key, &s->key) != 0) {
			break;
		}
		rows[n].told = s->told;
		rows[n].bytes = s->bytes;
		rows[n].idle_ns = s->idle_ns;
		rows[n].in_turn = s->in_turn;
		n++;
	}
	return n;
}

static json_t *row_report(const struct row *row, uint64_t now)
{
	size_t len;
	const char *name = pfx_key_name(&row->key, &len);
	json_t *o = json_pack("{s:o}", "session", json_stringn(name, len));

	pfx_key_report(&row->key, o);
	json_object_set_new(o, "kind", json_string(pfx_prompt_name(row->told.kind)));
	json_object_set_new(o, "messages", json_integer((json_int_t)row->told.n_messages));
	json_object_set_new(o, "tokens", json_integer((json_int_t)row->told.n_tokens));
	json_object_set_new(o, "turns", json_integer(row->told.turns));
	json_object_set_new(o, "ttl_ms", json_integer((json_int_t)(row->told.ttl_ns / 1000000u)));
	json_object_set_new(o, "bytes", json_integer((json_int_t)row->bytes));
	json_object_set_new(o, "idle_s",
		json_real(now > row->idle_ns && !row->in_turn ? (double)(now - row->idle_ns) / 1e9 : 0.0));
	json_object_set_new(o, "busy", json_boolean(row->in_turn));
	return o;
}

json_t *pfx_sessions_list(struct pfx_sessions *t, const struct pfx_key *of, int all, uint64_t now)
{
	json_t *list = json_array();
	struct row *rows;
	size_t n = 0;

	pthread_mutex_lock(&t->lock);
	rows = pfx_calloc(t->map.n + 1, sizeof(*rows));
	if (rows != NULL) {
		n = rows_locked(t, of, all, now, rows);
	}
	pthread_mutex_unlock(&t->lock);
	if (n > 0) {
		qsort(rows, n, sizeof(*rows), by_name);
	}
	for (size_t i = 0; i < n; i++) {
		json_array_append_new(list, row_report(&rows[i], now));
		pfx_key_free(&rows[i].key);
	}
	pfx_free(rows);
	return list;
}

void pfx_sessions_stats(struct pfx_sessions *t, uint64_t now, struct pfx_sessions_stats *out)
{
	pthread_mutex_lock(&t->lock);
	sweep_locked(t, now);
	*out = t->n;
	pthread_mutex_unlock(&t->lock);
}

/* ---- in a turn ---- */

int pfx_session_join(const struct pfx_session *s, struct pfx_job *job, char *err, size_t errlen)
{
	int chat = s->kind == PFX_PROMPT_CHAT;

	if (s->kind == PFX_PROMPT_NONE) {
		return 0;
	}
	if (job->prompt == PFX_PROMPT_NONE) {
		job->prompt = s->kind;
	}
	if (chat != (job->prompt == PFX_PROMPT_CHAT)) {
		return pfx_fail(-EINVAL, err, errlen, chat ? "the session is one of messages: %s cannot go "
			"on behind it" : "the session is a run of tokens: %s cannot go on behind it",
			pfx_prompt_name(job->prompt));
	}
	return chat ? pfx_messages_join(s->messages, s->tools, s->documents, s->kwargs, job) : 0;
}

/* What one value weighs more than the one whose place it takes (wraps when less). */
static size_t replaced(const json_t *old, const json_t *new)
{
	return old == new ? 0 : pfx_json_bytes(new) - pfx_json_bytes(old);
}

int pfx_session_say(struct pfx_session *s, struct pfx_job *job, const char *reply, size_t len)
{
	json_t *message;

	if (reply != NULL) {
		message = json_pack("{s:s,s:o}", "role", "assistant", "content",
			json_stringn(reply, len));
		/* The joined list is the job's own: the session's is not touched. */
		if (message == NULL || json_array_append_new(job->messages, message) != 0) {
			return -ENOMEM;
		}
	}
	/* Only what is new is weighed: this runs between two steps. */
	for (size_t i = json_array_size(s->messages); i < json_array_size(job->messages); i++) {
		s->json_bytes += pfx_json_bytes(json_array_get(job->messages, i));
	}
	s->json_bytes += replaced(s->tools, job->tools) + replaced(s->documents, job->documents) +
		replaced(s->kwargs, job->kwargs);
	json_decref(s->messages);
	json_decref(s->tools);
	json_decref(s->documents);
	json_decref(s->kwargs);
	s->kind = PFX_PROMPT_CHAT;
	s->messages = job->messages;
	s->tools = job->tools;
	s->documents = job->documents;
	s->kwargs = job->kwargs;
	job->messages = job->tools = job->documents = job->kwargs = NULL;
	return 0;
}

void pfx_session_run(struct pfx_session *s, struct pfx_ids *ids)
{
	s->kind = PFX_PROMPT_TOKENS;
	pfx_free(s->seen.ids.v);
	s->seen.ids = *ids;
	memset(ids, 0, sizeof(*ids));
}

/*
 * What the operator's view counts with: the ceiling against a plain set of all prefixes, exact
 * and sampled; tables of names and of hot prefixes, whose memory is bounded; the ring of facts;
 * and the recorder's file.
 */
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/rng.h"
#include "engine/ceiling.h"
#include "engine/facts.h"
#include "engine/hits.h"
#include "engine/hot.h"
#include "engine/recorder.h"
#include "tests/tap.h"

#define B 16u

/* ---- the ceiling ---- */

#define N_GROUPS 60u
#define DEPTH_MAX 40u

/* Requests are walks: a group's common blocks, then blocks of one's own. */
static uint32_t make_walk(struct pfx_rng *rng, uint64_t own, uint64_t *digests)
{
	uint64_t group = pfx_rng_below(rng, N_GROUPS), h = 0;
	uint32_t shared = 1 + (uint32_t)pfx_rng_below(rng, DEPTH_MAX / 2);
	uint32_t n = shared + (uint32_t)pfx_rng_below(rng, DEPTH_MAX / 2);

	for (uint32_t k = 0; k < n; k++) {
		h = pfx_rng_mix(h, k < shared ? group : own + 1000);
		digests[k] = h;
	}
	return n;
}

/* The plain way: all digests there ever were, with the earliest time. */
struct naive {
	uint64_t *digests, *when;
	uint32_t n, mask;
};

static uint64_t *naive_at(struct naive *m, uint64_t digest)
{
	uint32_t i = (uint32_t)(digest >> 3) & m->mask;

	while (m->digests[i] != 0 && m->digests[i] != digest) {
		i = (i + 1) & m->mask;
	}
	if (m->digests[i] == 0) {
		m->digests[i] = digest;
		m->when[i] = UINT64_MAX;
		m->n++;
	}
	return &m->when[i];
}

static void naive_open(struct naive *m, uint32_t n)
{
	m->digests = pfx_xcalloc(n, sizeof(*m->digests));
	m->when = pfx_xcalloc(n, sizeof(*m->when));
	m->mask = n - 1;
	m->n = 0;
}

static void naive_close(struct naive *m)
{
	pfx_free(m->digests);
	pfx_free(m->when);
}

struct rates {
	uint64_t hit, of, want_hit, want_of;
};

/* One request through both; it may have come in before the one that ended last. */
static void ask_both(struct pfx_ceiling *c, struct naive *m, struct pfx_rng *rng, uint64_t number,
	struct rates *r)
{
	uint64_t digests[DEPTH_MAX];
	struct pfx_ceiling_ask ask = { .digests = digests, .block_tokens = B };

	ask.when = 2 + number - pfx_rng_below(rng, 2);
	ask.n_blocks = make_walk(rng, number, digests);
	ask.n_tokens = ask.n_blocks * B - (uint32_t)pfx_rng_below(rng, B);
	pfx_ceiling_look(c, &ask, &r->hit, &r->of);
	r->want_of += ask.n_tokens;
	for (uint32_t k = 0; k < ask.n_blocks; k++) {
		uint32_t n = ask.n_tokens - k * B < B ? ask.n_tokens - k * B : B;
		uint64_t *when = naive_at(m, digests[k]);

		r->want_hit += *when < ask.when ? n : 0;
		*when = *when < ask.when ? *when : ask.when;
	}
	for (uint32_t k = 0; k < ask.n_blocks; k++) {
		pfx_ceiling_add(c, digests[k], ask.when);
	}
}

static void ceiling_is_exact(uint64_t seed)
{
	struct pfx_rng rng = { seed };
	struct pfx_ceiling_stats s;
	struct pfx_ceiling *c;
	struct naive m;
	int wrong = 0;

	naive_open(&m, 1u << 16);
	ok(pfx_ceiling_open(&c, 1u << 16) == 0, "a ceiling opens");
	for (uint64_t i = 0; i < 1500; i++) {
		struct rates r = { 0 };

		ask_both(c, &m, &rng, i, &r);
		wrong += r.hit != r.want_hit || r.of != r.want_of;
	}
	is_int(wrong, 0, "exact, request by request, as long as there is room");
	pfx_ceiling_stats(c, &s);
	is_int(s.blocks, m.n, "... holding each block once");
	is_int(s.shift, 0, "... and says so");
	pfx_ceiling_clear(c);
	pfx_ceiling_stats(c, &s);
	is_int(s.blocks, 0, "cleared");
	pfx_ceiling_close(c);
	naive_close(&m);
}

static void ceiling_samples(uint64_t seed)
{
	struct pfx_rng rng = { seed };
	struct pfx_ceiling_stats s;
	struct pfx_ceiling *c;
	struct rates r = { 0 };
	struct naive m;
	uint32_t most = 0;
	double got, want;

	naive_open(&m, 1u << 20);
	pfx_ceiling_open(&c, 1u << 14);
	for (uint64_t i = 0; i < 30000; i++) {
		ask_both(c, &m, &rng, i, &r);
		pfx_ceiling_stats(c, &s);
		most = s.blocks > most ? s.blocks : most;
	}
	got = (double)r.hit / (double)r.of;
	want = (double)r.want_hit / (double)r.want_of;
	printf("# %u blocks, room for %u, one in %u looked at: %.4f, exact %.4f\n", m.n, s.entries,
		1u << s.shift, got, want);
	ok(s.shift >= 4, "what does not fit is sampled");
	ok(most <= s.entries / 4 * 3 + 64, "... and never takes more room");
	ok(fabs(got - want) < 0.02, "... and the rate is right to 2 points");
	pfx_ceiling_close(c);
	naive_close(&m);
}

static void ceiling_counts_what_was_found(void)
{
	uint64_t digests[3] = { 11, 22, 33 }, tokens = 0, of = 0;
	struct pfx_ceiling_ask ask = { .digests = digests, .n_blocks = 3, .block_tokens = B,
		.n_tokens = 2 * B + 5, .cached = B + 3, .when = 1 };
	struct pfx_ceiling *c;

	pfx_ceiling_open(&c, 64);
	pfx_ceiling_look(c, &ask, &tokens, &of);
	is_int(tokens, B + 3, "a ceiling is never below what the cache had");
	is_int(of, 2 * B + 5, "... of all that was asked for");
	for (int i = 0; i < 3; i++) {
		pfx_ceiling_add(c, digests[i], 5);
	}
	tokens = of = 0;
	pfx_ceiling_look(c, &ask, &tokens, &of);
	is_int(tokens, B + 3, "what came later is not counted");
	ask.when = 6;
	tokens = of = 0;
	pfx_ceiling_look(c, &ask, &tokens, &of);
	is_int(tokens, 2 * B + 5, "what came earlier is");
	pfx_ceiling_close(c);
}

/* ---- names ---- */

static struct pfx_owner owner_of(uint64_t i)
{
	struct pfx_owner o = { .key = i + 1 };
	char salt[32];

	pfx_name_set(&o.salt, salt, (size_t)snprintf(salt, sizeof(salt), "salt %llu",
		(unsigned long long)i));
	return o;
}

static long long sum_of(const json_t *list, const char *key)
{
	long long sum = 0;

	for (size_t i = 0; i < json_array_size(list); i++) {
		sum += json_integer_value(json_object_get(json_array_get(list, i), key));
	}
	return sum;
}

static void names_are_bounded(void)
{
	struct pfx_hits_row row = { .requests = 1, .prompt = 10, .computed = 10 };
	const uint64_t start = 1700000000000000000u;
	struct pfx_owner heavy = owner_of(100000);
	struct pfx_hits_row window;
	struct pfx_buf text = PFX_BUF_INIT;
	struct pfx_hits *h;
	json_t *o;

	pfx_hits_open(&h, start);
	for (uint64_t i = 0; i < 5000; i++) {
		struct pfx_owner one = owner_of(i);

		pfx_hits_add(h, &one, NULL, &row, start + i * 60000000000u);
		if (i < 100) {
			pfx_hits_add(h, &heavy, &heavy.salt, &row, start);
		}
	}
	pfx_buf_addc(&text, '{');
	pfx_hits_put(&text, h, PFX_HITS_NAMES, PFX_HITS_MINUTES, start + 4999 * 60000000000u);
	pfx_buf_addc(&text, '}');
	o = json_loadb(text.data, text.len, 0, NULL);
	pfx_buf_free(&text);
	is_int(json_array_size(json_object_get(o, "namespaces")), PFX_HITS_NAMES,
		"so many namespaces have rows");
	is_int(sum_of(json_object_get(o, "namespaces"), "prompt_tokens") +
		json_integer_value(json_object_get(json_object_get(o, "others"), "prompt_tokens")),
		json_integer_value(json_object_get(json_object_get(o, "total"), "prompt_tokens")),
		"with the others they add up");
	ok(pfx_hits_owner(h, heavy.key) != NULL, "who asks often keeps his row");
	is_int(sum_of(json_object_get(o, "named"), "requests"), 100, "a named prefix is counted apart");
	is_int(json_array_size(json_object_get(o, "minutes")), PFX_HITS_MINUTES, "a day of minutes");
	json_decref(o);
	pfx_hits_window(h, 10, start + 4999 * 60000000000u, &window);
	is_int(window.requests, 10, "the last ten minutes");
	pfx_hits_window(h, 10, start + 5010 * 60000000000u, &window);
	is_int(window.requests, 0, "... and later, none of them");
	pfx_hits_close(h);
}

static void long_names_are_cut(void)
{
	char text[300];
	struct pfx_name name;
	json_t *v;

	for (size_t i = 0; i + 3 <= sizeof(text); i += 3) {
		memcpy(text + i, "€", 3);
	}
	pfx_name_set(&name, text, 299);
	v = pfx_name_json(&name);
	ok(v != NULL, "a long name is still UTF-8 when cut");
	is_int(json_string_length(v), PFX_NAME_MAX / 3 * 3 + 3, "... and ends in an ellipsis");
	json_decref(v);
}

/* ---- hot prefixes ---- */

static void add_prompt(struct pfx_hot *hot, const uint32_t *tokens, uint32_t n)
{
	struct pfx_hits_row row = { .requests = 1, .prompt = n, .computed = n };
	struct pfx_owner owner = { .key = 1 };
	uint64_t digests[64], h = 0;

	for (uint32_t k = 0; k < n / B; k++) {
		for (uint32_t i = 0; i < B; i++) {
			h = pfx_rng_mix(h, tokens[k * B + i]);
		}
		digests[k] = h;
	}
	pfx_hot_add(hot, &owner, digests, n / B, tokens, n, &row, 1);
}

static void hot_prefixes(uint64_t seed)
{
	struct pfx_rng rng = { seed };
	struct pfx_hot_prefix top[8];
	struct pfx_hot *hot;
	uint32_t tokens[400], n;

	pfx_hot_open(&hot, B);
	for (uint32_t round = 0; round < 3000; round++) {
		uint32_t shared = round % 3 == 0 ? 100 : round % 3 == 1 ? 250 : 0;

		for (uint32_t i = 0; i < 400; i++) {
			/* Both kinds begin with the same 40 tokens. */
			tokens[i] = i < 40 && shared > 0 ? i : i < shared ? shared + i
				: (uint32_t)pfx_rng_below(&rng, 1u << 30);
		}
		add_prompt(hot, tokens, 400);
	}
	n = pfx_hot_top(hot, top, 8);
	ok(n >= 3, "the hot prefixes are found");
	is_int(top[0].n_tokens, 40, "the one that both kinds share, to the token");
	is_int(top[0].row->requests, 2000, "... with all their requests");
	ok(top[1].n_tokens + top[2].n_tokens == 350 && (top[1].n_tokens == 100 ||
		top[1].n_tokens == 250), "then those of each kind, to the token");
	is_int(top[1].row->requests + top[2].row->requests, 2000, "... with theirs");
	is_int(top[0].head[39], 39, "and how it begins");
	for (uint32_t i = 3; i < n; i++) {
		ok(top[i].row->requests < 100, "prompts of their own are not hot");
	}
	pfx_hot_close(hot);
}

/* ---- facts ---- */

static void facts_wrap(void)
{
	struct pfx_facts_ring *ring;
	struct pfx_facts f = { .number = 0 };

	pfx_facts_open(&ring);
	for (f.number = 1; f.number <= PFX_FACTS_ROWS + 10; f.number++) {
		f.n_prompt = (uint32_t)f.number * 2;
		pfx_facts_add(ring, &f);
	}
	ok(pfx_facts_find(ring, 10) == NULL, "the oldest facts are gone");
	ok(pfx_facts_find(ring, 0) == NULL, "there is no request 0");
	is_int(pfx_facts_find(ring, 11)->n_prompt, 22, "the last ones are there");
	pfx_facts_close(ring);
}

/* ---- the recorder ---- */

static sem_t opened, ended;
static char open_error[256];

static void on_opened(void *arg, struct pfx_recorder *rec, const char *error)
{
	snprintf(open_error, sizeof(open_error), "%s", error == NULL ? "" : error);
	sem_post(&opened);
}

static void on_ended(void *arg, struct pfx_recorder *rec)
{
	sem_post(&ended);
}

static struct pfx_recorder *record_to(const char *path, uint64_t max_bytes)
{
	struct pfx_recorder_opts opts = { .path = path, .max_bytes = max_bytes, .block_tokens = B,
		.start_ns = pfx_clock_ns(), .opened = on_opened };
	struct pfx_recorder *rec = NULL;

	if (pfx_recorder_start(&rec, &opts) == 0) {
		sem_wait(&opened);
	}
	return rec;
}

static void add_request(struct pfx_recorder *rec, uint64_t admission, uint64_t floor,
	uint64_t space, uint32_t first, uint32_t n)
{
	struct pfx_record_request r = { .admission = admission, .floor = floor,
		.received_ns = pfx_clock_ns(), .space_key = space, .n_prompt = n,
		.n_reply = (uint32_t)admission, .session = pfx_strdup("bob"), .session_len = 3,
		.last_turn = admission == 3 };

	r.tokens = pfx_xcalloc(n, sizeof(*r.tokens));
	for (uint32_t i = 0; i < n; i++) {
		r.tokens[i] = first + i;
	}
	pfx_recorder_add(rec, &r);
}

static void end(struct pfx_recorder *rec)
{
	pfx_recorder_stop(rec, on_ended, NULL);
	sem_wait(&ended);
}

static long long status_int(struct pfx_recorder *rec, const char *key)
{
	json_t *o = pfx_recorder_status(rec);
	long long n = json_integer_value(json_object_get(o, key));

	json_decref(o);
	return n;
}

static int status_is(struct pfx_recorder *rec, const char *state)
{
	json_t *o = pfx_recorder_status(rec);
	int same = strcmp(json_string_value(json_object_get(o, "state")), state) == 0;

	json_decref(o);
	return same;
}

/* All lines as an array; NULL when one is no JSON, or the file does not end with a newline. */
static json_t *read_lines(const char *path)
{
	json_t *lines = json_array();
	FILE *f = fopen(path, "r");
	char *line = NULL;
	size_t cap = 0;
	ssize_t n;

	while (f != NULL && (n = getline(&line, &cap, f)) > 0) {
		json_t *o = line[n - 1] == '\n' ? json_loadb(line, (size_t)n, 0, NULL) : NULL;

		if (o == NULL) {
			json_decref(lines);
			lines = NULL;
			break;
		}
		json_array_append_new(lines, o);
	}
	free(line);
	if (f != NULL) {
		fclose(f);
	}
	return lines;
}

static const json_t *ids(const json_t *lines, size_t i)
{
	return json_object_get(json_array_get(lines, i), "hash_ids");
}

static void records_in_order(const char *path)
{
	struct pfx_recorder *rec = record_to(path, 1u << 20);
	struct stat st;
	json_t *lines, *again;

	ok(open_error[0] == 0 && pfx_recorder_is_on(rec), "a trace starts");
	add_request(rec, 2, 1, 7, 0, 3 * B);      /* 1 is not there yet */
	add_request(rec, 1, 3, 7, 0, 2 * B + 5);
	add_request(rec, 3, UINT64_MAX, 8, 0, 3 * B);
	end(rec);
	ok(status_is(rec, "stopped") && pfx_recorder_is_done(rec), "... and stops");
	is_int(status_int(rec, "records"), 3, "... with three records");
	lines = read_lines(path);
	is_int(json_array_size(lines), 3, "... which are lines");
	is_int(stat(path, &st) == 0 ? st.st_mode & 0777 : 0, 0600, "its user's alone");
	is_int(st.st_size, status_int(rec, "bytes"), "... of the size told");
	is_int(json_integer_value(json_object_get(json_array_get(lines, 0), "output_length")), 1,
		"in the order in which they came in");
	is_int(json_array_size(ids(lines, 0)), 3, "an id for each block, the last in part");
	ok(json_equal(json_array_get(ids(lines, 0), 1), json_array_get(ids(lines, 1), 1)),
		"equal prefixes have equal ids");
	ok(!json_equal(json_array_get(ids(lines, 0), 2), json_array_get(ids(lines, 1), 2)),
		"a block in part has an id of its own");
	ok(!json_equal(json_array_get(ids(lines, 1), 0), json_array_get(ids(lines, 2), 0)),
		"another namespace has other ids");
	ok(!json_equal(json_object_get(json_array_get(lines, 1), "session"),
		json_object_get(json_array_get(lines, 2), "session")), "... and other sessions");
	ok(json_is_true(json_object_get(json_array_get(lines, 2), "last_turn")), "a last turn is told");
	pfx_recorder_close(rec);
	rec = record_to(path, 1u << 20);
	ok(strstr(open_error, "exists") != NULL && !pfx_recorder_is_on(rec),
		"a file that is there stays as it is: %s", open_error);
	pfx_recorder_close(rec);
	again = read_lines(path);
	ok(json_equal(lines, again), "... to the byte");
	json_decref(again);
	unlink(path);
	rec = record_to(path, 1u << 20);
	add_request(rec, 1, UINT64_MAX, 7, 0, 3 * B);
	end(rec);
	again = read_lines(path);
	ok(!json_equal(json_array_get(ids(lines, 1), 0), json_array_get(ids(again, 0), 0)),
		"another trace has another key");
	json_decref(again);
	json_decref(lines);
	pfx_recorder_close(rec);
	unlink(path);
}

static void follows_no_link(const char *path)
{
	struct pfx_recorder *rec;

	ok(symlink("/nowhere/at/all", path) == 0, "a link");
	rec = record_to(path, 1u << 20);
	ok(open_error[0] != 0 && status_is(rec, "failed"), "... is not followed: %s", open_error);
	pfx_recorder_close(rec);
	unlink(path);
}

static void ends_when_full(const char *path)
{
	struct pfx_recorder *rec = record_to(path, 4096);
	json_t *lines;

	for (uint64_t i = 1; i <= 200; i++) {
		add_request(rec, i, i + 1, 7, (uint32_t)i, 3 * B);
	}
	end(rec);
	lines = read_lines(path);
	ok(status_is(rec, "failed") && lines != NULL, "max_bytes ends a trace with a whole line");
	ok(status_int(rec, "bytes") <= 4096 && status_int(rec, "bytes") > 3500, "... within them");
	is_int(json_array_size(lines), status_int(rec, "records"), "... and the count is right");
	json_decref(lines);
	pfx_recorder_close(rec);
	unlink(path);
}

/* A write that does not go in whole, as on a full disk. */
static void ends_with_an_error(const char *path)
{
	struct rlimit was, small = { 3000, 3000 };
	struct pfx_recorder *rec;
	json_t *lines;

	signal(SIGXFSZ, SIG_IGN);
	getrlimit(RLIMIT_FSIZE, &was);
	small.rlim_max = was.rlim_max;
	rec = record_to(path, 1u << 20);
	setrlimit(RLIMIT_FSIZE, &small);
	for (uint64_t i = 1; i <= 2000; i++) {
		add_request(rec, i, i + 1, 7, (uint32_t)i, 3 * B);
	}
	end(rec);
	setrlimit(RLIMIT_FSIZE, &was);
	lines = read_lines(path);
	ok(status_is(rec, "failed") && lines != NULL, "a write that fails ends it with a whole line");
	is_int(json_array_size(lines), status_int(rec, "records"), "... and the count is right");
	json_decref(lines);
	pfx_recorder_close(rec);
	unlink(path);
}

static void closes_by_itself(const char *path)
{
	struct pfx_recorder *rec = record_to(path, 1u << 20);
	json_t *lines;

	add_request(rec, 2, 1, 7, 0, 3 * B);
	pfx_recorder_close(rec);
	lines = read_lines(path);
	is_int(json_array_size(lines), 1, "what was handed over is written when the engine goes");
	json_decref(lines);
	unlink(path);
}

int main(void)
{
	uint64_t seed = pfx_rng_entropy(), live = pfx_alloc_live();
	char dir[] = "/tmp/pfx-view-XXXXXX", path[64];

	printf("# seed %llu\n", (unsigned long long)seed);
	sem_init(&opened, 0, 0);
	sem_init(&ended, 0, 0);
	ceiling_is_exact(seed);
	ceiling_samples(seed);
	ceiling_counts_what_was_found();
	names_are_bounded();
	long_names_are_cut();
	hot_prefixes(seed);
	facts_wrap();
	ok(mkdtemp(dir) != NULL, "a folder");
	snprintf(path, sizeof(path), "%s/trace", dir);
	records_in_order(path);
	follows_no_link(path);
	ends_when_full(path);
	ends_with_an_error(path);
	closes_by_itself(path);
	rmdir(dir);
	is_int(pfx_alloc_live(), live, "nothing is left");
	return tap_done();
}

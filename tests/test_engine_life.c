/*
 * Sessions, named prefixes, leases and ends on a tiny model: what goes on behind something
 * gives the same bits as the whole sent at once, and whatever goes wrong leaves things as
 * they were.
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/rng.h"
#include "tests/engine_util.h"
#include "tests/tap.h"
#include "tests/model_tiny.h"
#include "tests/test_models.h"

#define END 2u /* <|im_end|> */

static const char *model;
static struct pfx_engine *e;
static uint32_t tokens[600];
static int n_salts;

/* ---- jobs ---- */

static struct pfx_job *with_session(struct pfx_job *job, const char *name)
{
	job->session = pfx_strdup(name);
	job->session_len = strlen(name);
	return job;
}

static struct pfx_job *with_prefix(struct pfx_job *job, const char *name)
{
	job->prefix = pfx_strdup(name);
	job->prefix_len = strlen(name);
	return job;
}

static struct pfx_job *with_salt(struct pfx_job *job, const char *salt)
{
	pfx_free(job->salt);
	job->salt = pfx_strdup(salt);
	job->salt_len = strlen(salt);
	return job;
}

/* messages: JSON with ' for ". */
static struct pfx_job *chat_job(enum pfx_job_kind kind, const char *messages, uint32_t max_tokens)
{
	struct pfx_job *job = pfx_job_new(kind);
	char *text = pfx_strdup(messages);

	for (char *c = text; *c != 0; c++) {
		*c = *c == '\'' ? '"' : *c;
	}
	job->prompt = PFX_PROMPT_CHAT;
	job->messages = json_loads(text, 0, NULL);
	job->max_tokens = max_tokens;
	job->digest = 1;
	pfx_free(text);
	if (job->messages == NULL) {
		printf("Bail out! %s\n", messages);
		exit(1);
	}
	return job;
}

static struct pfx_job *digests(struct pfx_job *job)
{
	job->digest = 1;
	return job;
}

static struct pfx_job *bare(enum pfx_job_kind kind, uint32_t max_tokens)
{
	struct pfx_job *job = pfx_job_new(kind);

	job->max_tokens = max_tokens;
	job->digest = 1;
	return job;
}

static int same_reply(const struct reply *a, const struct reply *b)
{
	return a->kind == PFX_EVENT_DONE && b->kind == PFX_EVENT_DONE && a->n == b->n &&
		memcmp(a->tokens, b->tokens, a->n * sizeof(*a->tokens)) == 0 &&
		memcmp(a->digests, b->digests, a->n * sizeof(*a->digests)) == 0;
}

/* Ends in that report; the number at key. */
static long long ask(struct pfx_job *job, const char *key)
{
	struct reply r;
	long long n;

	run(e, job, &r);
	n = r.kind != PFX_EVENT_REPORT ? -1 : key == NULL ? 0
		: json_integer_value(json_object_get(r.report, key));
	if (n == -1) {
		printf("# %s\n", r.message);
	}
	reply_free(&r);
	return n;
}

static void refused(struct pfx_job *job, enum pfx_fault fault, const char *words, const char *what)
{
	struct reply r;

	run(e, job, &r);
	ok(r.kind == PFX_EVENT_ERROR && r.fault == fault && strstr(r.message, words) != NULL,
		"%s: %s", what, r.kind == PFX_EVENT_ERROR ? r.message : "no error");
	reply_free(&r);
}

/* ---- ids by hand: what a session's prompt must be ---- */

struct ids {
	uint32_t v[2000];
	uint32_t n;
};

static void add(struct ids *ids, const uint32_t *v, uint32_t n)
{
	memcpy(ids->v + ids->n, v, n * sizeof(*v));
	ids->n += n;
}

static void add_bytes(struct ids *ids, const char *text, size_t n, int special)
{
	struct pfx_job *job = pfx_job_new(PFX_JOB_TOKENIZE);
	struct reply r;

	job->prompt = PFX_PROMPT_TEXT;
	job->text = pfx_memdup(text, n);
	job->text_len = n;
	job->text_special = special;
	run(e, job, &r);
	add(ids, r.tokens, r.n);
	reply_free(&r);
}

static void add_text(struct ids *ids, const char *text)
{
	add_bytes(ids, text, strlen(text), 1);
}

/* The ids sent whole, where nothing is cached. */
static void whole(const struct ids *ids, uint32_t max_tokens, struct reply *out)
{
	struct pfx_job *job = token_job(PFX_JOB_GENERATE, ids->v, ids->n, max_tokens);
	char salt[32];

	snprintf(salt, sizeof(salt), "whole-%d", ++n_salts);
	job->ignore_eos = 0;
	run(e, with_salt(job, salt), out);
}

static void rendered(const char *messages, char *out, size_t size)
{
	struct reply r;

	run(e, chat_job(PFX_JOB_RENDER, messages, 0), &r);
	snprintf(out, size, "%s", r.text);
	reply_free(&r);
}

/* ---- sessions ---- */

/*
 * A conversation turn by turn: each turn's prompt must be the ids of the one before, its
 * reply's, and the rest of what the template writes.
 */
static void test_conversation(void)
{
	static const char *const turns[] = { "Hi", "And now <|im_end|> what?", "A b c", "\xc3\xa4" };
	static const char head[] = "<|im_start|>system\nBe good<|im_end|>\n";
	struct ids ids = { .n = 0 };
	struct reply r, again;
	char piece[400], message[400];
	int same = 1, cached = 1;

	is_int(ask(with_session(chat_job(PFX_JOB_SESSION_OPEN,
			   "[{'role':'system','content':'Be good'}]", 0), "talk"), "messages"), 1,
		"a session is opened");
	add_text(&ids, head);
	for (int i = 0; i < 4; i++) {
		snprintf(message, sizeof(message), "[{'role':'user','content':'%s'}]", turns[i]);
		run(e, with_session(chat_job(PFX_JOB_GENERATE, message, 6), "talk"), &r);
		if (i > 0) {
			cached &= r.usage.cached_device >= ids.n - 1;
			add_text(&ids, ids.v[ids.n - 1] == END ? "\n" : "<|im_end|>\n");
		}
		add_text(&ids, "<|im_start|>user\n");
		/* What the client wrote is plain, whatever it looks like. */
		add_bytes(&ids, turns[i], strlen(turns[i]), 0);
		snprintf(piece, sizeof(piece), "<|im_end|>\n<|im_start|>assistant\n");
		add_text(&ids, piece);
		same &= r.usage.prompt_tokens == ids.n;
		whole(&ids, 6, &again);
		same &= same_reply(&r, &again);
		add(&ids, r.tokens, r.n);
		reply_free(&r);
		reply_free(&again);
	}
	ok(same, "each turn's bits are those of the whole sent at once");
	ok(cached, "and the reply before it is cached to the token");
	is_int(ask(with_session(pfx_job_new(PFX_JOB_SESSION_CLOSE), "talk"), "cached_tokens"),
		ids.n - 1, "the close finds all of it but the last id");
	refused(with_session(bare(PFX_JOB_GENERATE, 1), "talk"), PFX_FAULT_NOT_FOUND, "talk",
		"after it there is no session");
}

/* The messages that a session has come to, sent whole, are the same conversation. */
static void test_append_and_warm(void)
{
	struct reply a, b, c;
	char t1[500], t2[500];

	ask(with_session(chat_job(PFX_JOB_SESSION_OPEN, "[{'role':'system','content':'S'}]", 0), "s"),
		NULL);
	is_int(ask(with_session(chat_job(PFX_JOB_SESSION_APPEND,
			   "[{'role':'user','content':'U'},{'role':'user','content':'V'}]", 0), "s"),
		       "messages"), 3, "append adds messages");
	run(e, with_session(chat_job(PFX_JOB_WARM, "[{'role':'user','content':'W'}]", 0), "s"), &a);
	run(e, with_session(bare(PFX_JOB_GENERATE, 4), "s"), &b);
	rendered("[{'role':'system','content':'S'},{'role':'user','content':'U'},"
		"{'role':'user','content':'V'},{'role':'user','content':'W'}]", t1, sizeof(t1));
	rendered("[{'role':'system','content':'S'},{'role':'user','content':'U'},"
		"{'role':'user','content':'V'}]", t2, sizeof(t2));
	ok(a.kind == PFX_EVENT_DONE && a.usage.prompt_tokens > b.usage.prompt_tokens,
		"warm leaves the session as it was");
	ok(b.usage.cached_device > 20, "and its prefix is cached");
	run(e, with_salt(chat_job(PFX_JOB_GENERATE, "[{'role':'system','content':'S'},"
		"{'role':'user','content':'U'},{'role':'user','content':'V'}]", 4), "am"), &c);
	ok(same_reply(&b, &c), "a turn without new messages answers the conversation as it stands");
	reply_free(&a);
	reply_free(&b);
	reply_free(&c);
	struct pfx_job *job = with_session(chat_job(PFX_JOB_SESSION_APPEND,
		"[{'role':'user','content':'X'}]", 0), "s");
	job->warm = 1;
	run(e, job, &a);
	ok(a.kind == PFX_EVENT_REPORT && json_integer_value(json_object_get(
		json_object_get(a.report, "usage"), "computed_tokens")) > 0 &&
		json_integer_value(json_object_get(a.report, "messages")) == 5,
		"append computes when asked to");
	reply_free(&a);
	job = with_session(chat_job(PFX_JOB_GENERATE, "[]", 2), "s");
	job->last_turn = 1;
	run(e, job, &a);
	ok(a.kind == PFX_EVENT_DONE, "the last turn");
	reply_free(&a);
	refused(with_session(bare(PFX_JOB_GENERATE, 1), "s"), PFX_FAULT_NOT_FOUND, "s",
		"closes the session");
}

static void test_run(void)
{
	struct ids ids = { .n = 0 };
	struct reply r, again;
	struct pfx_job *job;
	int same = 1;

	job = with_session(text_job(PFX_JOB_SESSION_OPEN, "Once ", 0), "run");
	is_int(ask(job, "messages"), 0, "a run of text");
	add_text(&ids, "Once ");
	for (int i = 0; i < 4; i++) {
		if (i % 2 == 0) {
			job = text_job(PFX_JOB_GENERATE, "upon a time", 5);
			add_text(&ids, "upon a time");
		} else {
			job = token_job(PFX_JOB_GENERATE, tokens + i, 7, 5);
			add(&ids, tokens + i, 7);
		}
		job->ignore_eos = 0;
		run(e, with_session(digests(job), "run"), &r);
		whole(&ids, 5, &again);
		same &= same_reply(&r, &again) && r.usage.prompt_tokens == ids.n;
		/* The id that ended a reply is no part of the run. */
		add(&ids, r.tokens, r.n - (r.finish == PFX_FINISH_STOP));
		reply_free(&r);
		reply_free(&again);
	}
	ok(same, "text and ids follow each other, with the bits of the whole");
	refused(with_session(chat_job(PFX_JOB_GENERATE, "[]", 1), "run"), PFX_FAULT_BAD_REQUEST, "run",
		"messages behind a run");
	is_int(ask(with_session(text_job(PFX_JOB_SESSION_APPEND, "x", 0), "run"), "tokens"),
		ids.n + 1, "append to a run");
	job = with_session(token_job(PFX_JOB_SESSION_APPEND, tokens, 600, 0), "run");
	is_int(ask(job, "tokens"), ids.n + 601, "and much more");
	job = pfx_job_new(PFX_JOB_END);
	/* The last id has no KV, unless the reply was ended by one behind it. */
	ok(ask(with_session(job, "run"), "cached_tokens") >= ids.n - 1, "end closes it");
}

/* Whether a run of the prompt, the reply's first k ids (or its text anew) and `more` is next's. */
static int goes_on(const struct reply *said, uint32_t k, const struct reply *next)
{
	struct ids ids = { .n = 0 };
	struct reply again;
	int same;

	add(&ids, tokens + 50, 30);
	if (k == UINT32_MAX) {
		add_bytes(&ids, said->text, said->text_len, 0);
	} else {
		add(&ids, said->tokens, k);
	}
	add_text(&ids, " and");
	if (ids.n != next->usage.prompt_tokens) {
		return 0;
	}
	whole(&ids, 4, &again);
	same = same_reply(next, &again);
	reply_free(&again);
	return same;
}

/* A stop string cuts the reply's text; the session goes on behind the cut. */
static void test_stop(void)
{
	struct reply r, more, next, text;
	struct pfx_job *job;
	size_t at;
	int good;

	run(e, token_job(PFX_JOB_GENERATE, tokens + 50, 30, 12), &r);
	at = r.text_len - 1;
	ask(with_session(bare(PFX_JOB_SESSION_OPEN, 0), "stop"), NULL);
	job = with_session(token_job(PFX_JOB_GENERATE, tokens + 50, 30, 12), "stop");
	job->stop = pfx_calloc(1, sizeof(*job->stop));
	job->stop_len = pfx_calloc(1, sizeof(*job->stop_len));
	/* The last character of the text may well lie within an id. */
	while (at > 0 && (r.text[at] & 0xc0) == 0x80) {
		at--;
	}
	job->stop[0] = pfx_strdup(r.text + at);
	job->stop_len[0] = r.text_len - at;
	job->n_stop = 1;
	run(e, job, &more);
	run(e, with_session(digests(text_job(PFX_JOB_GENERATE, " and", 4)), "stop"), &next);
	good = goes_on(&more, UINT32_MAX, &next);
	for (uint32_t k = 0; k <= more.n && !good; k++) {
		run(e, token_job(PFX_JOB_DETOKENIZE, more.tokens, k, 0), &text);
		good = text.text_len == more.text_len &&
			memcmp(text.text, more.text, text.text_len) == 0 && goes_on(&more, k, &next);
		reply_free(&text);
	}
	ok(more.text_len < r.text_len && good, "behind a stop string it goes on with what was said");
	ask(with_session(pfx_job_new(PFX_JOB_SESSION_CLOSE), "stop"), NULL);
	reply_free(&r);
	reply_free(&more);
	reply_free(&next);
}

/* Turns sent without waiting are those of one after the other. */
static void test_order(void)
{
	static const char *const turns[] = { "[{'role':'user','content':'one'}]",
		"[{'role':'user','content':'two'}]", "[{'role':'user','content':'three'}]" };
	struct reply r[2][5], *p[5];
	int same = 1;

	for (int k = 0; k < 2; k++) {
		const char *name = k == 0 ? "slow" : "fast";

		for (int i = 0; i < 5; i++) {
			struct pfx_job *job = i == 0 ? bare(PFX_JOB_SESSION_OPEN, 0)
				: i == 4 ? pfx_job_new(PFX_JOB_SESSION_CLOSE)
				: chat_job(PFX_JOB_GENERATE, turns[i - 1], 5);

			/* One of them has a text thread of its own. */
			job->bytes = i == 2 ? 200000 : 0;
			p[i] = &r[k][i];
			start(e, with_session(with_salt(job, k == 0 ? "o1" : "o2"), name), p[i]);
			if (k == 0) {
				wait_all(e, &p[i], 1);
			}
		}
		wait_all(e, p, 5);
	}
	for (int i = 1; i < 4; i++) {
		same &= same_reply(&r[0][i], &r[1][i]) &&
			r[0][i].usage.prompt_tokens == r[1][i].usage.prompt_tokens;
	}
	ok(same && r[1][0].kind == PFX_EVENT_REPORT && r[1][4].kind == PFX_EVENT_REPORT,
		"turns go in the order in which they were sent");
	for (int i = 0; i < 10; i++) {
		reply_free(&r[i / 5][i % 5]);
	}
}

/* What fails, is cancelled, or is flushed away in the middle. */
static void test_trouble(void)
{
	struct pfx_tiny_opts shape = { .n_layers = 24, .n_ctx = 4096, .n_embd = 256, .seed = 5 };
	struct pfx_engine_opts opts = { .model_path = "test_life_slow.gguf", .n_threads = 1,
		.device_memory = 1 << 28 };
	struct pfx_engine *quick = e;
	struct reply r, waiting, late, next, want;
	struct reply *p[] = { &r, &waiting, &late };
	struct pfx_job *job;

	/* Slow enough for a reply to be caught in the middle. */
	if (pfx_tiny_save(opts.model_path, &shape) != 0) {
		printf("Bail out! cannot write %s\n", opts.model_path);
		exit(1);
	}
	e = open_engine(&opts);
	ask(with_session(chat_job(PFX_JOB_SESSION_OPEN, "[{'role':'user','content':'Hi'}]", 0), "t"),
		NULL);
	job = chat_job(PFX_JOB_GENERATE, "[{'role':'user','content':'long'}]", 100000);
	job->ignore_eos = 1;
	start(e, with_session(job, "t"), &r);
	start(e, with_session(chat_job(PFX_JOB_GENERATE, "[]", 5), "t"), &waiting);
	job = chat_job(PFX_JOB_GENERATE, "[]", 5);
	job->deadline_ms = 30;
	start(e, with_session(job, "t"), &late);
	wait_all(e, &p[2], 1);
	ok(late.kind == PFX_EVENT_ERROR && late.fault == PFX_FAULT_DEADLINE && !r.ended,
		"a turn that waits has its deadline");
	pfx_engine_cancel(e, waiting.number);
	wait_all(e, &p[1], 1);
	ok(waiting.kind == PFX_EVENT_DONE && waiting.finish == PFX_FINISH_CANCELLED && !r.ended,
		"a turn that waits can be cancelled");
	flush(e);
	pfx_engine_cancel(e, r.number);
	wait_all(e, &p[0], 1);
	is_int(r.finish, PFX_FINISH_CANCELLED, "so can one that runs");
	for (int i = 0; i < 3; i++) {
		reply_free(p[i]);
	}
	run(e, with_session(chat_job(PFX_JOB_GENERATE, "[]", 5), "t"), &next);
	run(e, with_salt(chat_job(PFX_JOB_GENERATE, "[{'role':'user','content':'Hi'}]", 5), "tr"),
		&want);
	ok(same_reply(&next, &want), "both leave the session as it was, and so does a flush");
	reply_free(&next);
	reply_free(&want);
	job = chat_job(PFX_JOB_GENERATE, "[{'role':'user','content':'x'}]", 5);
	job->deadline_ms = 1;
	job->max_tokens = 100000;
	job->ignore_eos = 1;
	refused(with_session(job, "t"), PFX_FAULT_DEADLINE, "1 ms", "a turn past its deadline");
	refused(with_session(text_job(PFX_JOB_GENERATE, "x", 1), "t"), PFX_FAULT_BAD_REQUEST,
		"messages", "text behind messages");
	is_int(ask(with_session(chat_job(PFX_JOB_SESSION_APPEND, "[]", 0), "t"), "messages"), 2,
		"nothing of them was kept");
	refused(with_session(bare(PFX_JOB_SESSION_OPEN, 0), "t"), PFX_FAULT_BAD_REQUEST, "already",
		"a second open");
	ask(with_session(pfx_job_new(PFX_JOB_SESSION_CLOSE), "t"), NULL);
	job = with_session(chat_job(PFX_JOB_SESSION_OPEN, "[{'role':'user'}, 5]", 0), "u");
	job->warm = 1;
	run(e, job, &r);
	ok(r.kind == PFX_EVENT_ERROR, "an open whose messages the template refuses: %s", r.message);
	reply_free(&r);
	refused(with_session(bare(PFX_JOB_GENERATE, 1), "u"), PFX_FAULT_NOT_FOUND, "u",
		"opens nothing");
	is_int(stat_of(e, "sessions.open"), 0, "no session is left");
	is_int(problems(e), 0, "no problems");
	pfx_engine_close(e);
	unlink(opts.model_path);
	e = quick;
}

static void test_apart(void)
{
	struct reply r;

	ask(with_salt(with_session(bare(PFX_JOB_SESSION_OPEN, 0), "mine"), "a"), NULL);
	refused(with_salt(with_session(text_job(PFX_JOB_GENERATE, "x", 1), "mine"), "b"),
		PFX_FAULT_NOT_FOUND, "mine", "a session of another salt");
	refused(with_session(pfx_job_new(PFX_JOB_SESSION_CLOSE), "mine"), PFX_FAULT_NOT_FOUND, "mine",
		"nor can it be closed from outside");
	ask(with_salt(with_prefix(text_job(PFX_JOB_PREFIX_PUT, "secret", 0), "mine"), "a"), NULL);
	refused(with_prefix(text_job(PFX_JOB_GENERATE, "x", 1), "mine"), PFX_FAULT_NOT_FOUND, "mine",
		"a prefix of another salt");
	refused(with_salt(with_prefix(pfx_job_new(PFX_JOB_PREFIX_DELETE), "mine"), "b"),
		PFX_FAULT_NOT_FOUND, "mine", "nor can it be deleted");
	run(e, pfx_job_new(PFX_JOB_PREFIX_LIST), &r);
	is_int((long long)json_array_size(json_object_get(r.report, "prefixes")), 0, "nor is it listed");
	reply_free(&r);
	/* "a" and "mine" against "am" and "ine": parts are framed. */
	refused(with_salt(with_session(bare(PFX_JOB_GENERATE, 1), "ine"), "am"), PFX_FAULT_NOT_FOUND,
		"ine", "names do not run together");
	is_int(ask(with_salt(with_session(pfx_job_new(PFX_JOB_SESSION_CLOSE), "mine"), "a"),
		       "cached_tokens"), 0, "it is there for its own");
	is_int(ask(with_salt(with_prefix(pfx_job_new(PFX_JOB_PREFIX_DELETE), "mine"), "a"), "leases"), 0,
		"and so is the prefix");
}

/* Ends in that fault; -1: in no fault. */
static int fault_as_client(struct pfx_job *job)
{
	struct reply r, *wait = &r;
	int fault;

	start_as_client(e, job, &r);
	wait_all(e, &wait, 1);
	fault = r.kind == PFX_EVENT_ERROR ? (int)r.fault : -1;
	reply_free(&r);
	return fault;
}

static struct pfx_job *for_all(enum pfx_job_kind kind)
{
	struct pfx_job *job = pfx_job_new(kind);

	job->all = 1;
	return job;
}

static struct pfx_job *explain(uint64_t number)
{
	struct pfx_job *job = pfx_job_new(PFX_JOB_EXPLAIN);

	job->args = json_pack("{s:I}", "request", (json_int_t)number);
	return job;
}

/* What is the admin's, and what clients of one namespace keep from one another by their salts. */
static void test_roles(void)
{
	static const enum pfx_job_kind lists[] = { PFX_JOB_PINS, PFX_JOB_PREFIX_LIST,
		PFX_JOB_SESSION_LIST };
	struct reply r, *wait = &r;
	int open = 0;

	for (enum pfx_job_kind kind = PFX_JOB_STATS; kind <= PFX_JOB_TRACE; kind++) {
		open += kind != PFX_JOB_EXPLAIN &&
			fault_as_client(pfx_job_new(kind)) != PFX_FAULT_FORBIDDEN;
	}
	is_int(open, 0, "jobs of the engine itself are for admins");
	for (size_t i = 0; i < sizeof(lists) / sizeof(lists[0]); i++) {
		is_int(fault_as_client(for_all(lists[i])), PFX_FAULT_FORBIDDEN,
			"a list of all salts is for admins (%zu)", i);
		is_int(fault_as_client(pfx_job_new(lists[i])), -1, "... that of one's own is not");
	}
	is_int(fault_as_client(for_all(PFX_JOB_UNPIN)), -1, "nor is to end all of one's own leases");

	start_as_client(e, with_salt(text_job(PFX_JOB_GENERATE, "mine alone", 1), "a"), &r);
	wait_all(e, &wait, 1);
	is_int(fault_as_client(with_salt(explain(r.number), "b")), PFX_FAULT_NOT_FOUND,
		"explain tells nothing of a request of another salt");
	is_int(fault_as_client(explain(r.number)), PFX_FAULT_NOT_FOUND, "... nor without a salt");
	is_int(fault_as_client(with_salt(explain(r.number), "a")), -1, "... but of one's own");
	is_int(ask(explain(r.number), "prompt_tokens"), r.usage.prompt_tokens, "... and admins of any");
	reply_free(&r);
}

static const char *session_at(const struct reply *r, size_t i, const char *field)
{
	return json_string_value(json_object_get(json_array_get(json_object_get(r->report, "sessions"),
		i), field));
}

static long long session_int(const struct reply *r, size_t i, const char *field)
{
	return json_integer_value(json_object_get(json_array_get(json_object_get(r->report, "sessions"),
		i), field));
}

static size_t list_sessions(struct pfx_job *job, struct reply *r)
{
	run(e, job, r);
	return json_array_size(json_object_get(r->report, "sessions"));
}

static void test_session_list(void)
{
	struct reply r;

	ask(with_session(chat_job(PFX_JOB_SESSION_OPEN, "[{'role':'user','content':'Hi'}]", 0), "b"), NULL);
	ask(with_session(bare(PFX_JOB_SESSION_OPEN, 0), "a"), NULL);
	ask(with_salt(with_session(bare(PFX_JOB_SESSION_OPEN, 0), "c"), "salt"), NULL);
	run(e, with_session(chat_job(PFX_JOB_GENERATE, "[{'role':'user','content':'Go'}]", 2), "b"), &r);
	reply_free(&r);
	is_int((long long)list_sessions(pfx_job_new(PFX_JOB_SESSION_LIST), &r), 2, "two sessions");
	ok(strcmp(session_at(&r, 0, "session"), "a") == 0 && strcmp(session_at(&r, 1, "session"), "b") == 0,
		"... by name");
	ok(strcmp(session_at(&r, 0, "kind"), "none") == 0 && session_int(&r, 0, "messages") == 0 &&
		session_int(&r, 0, "bytes") > 0, "... one is empty");
	ok(strcmp(session_at(&r, 1, "kind"), "messages") == 0 && session_int(&r, 1, "messages") == 3 &&
		session_int(&r, 1, "turns") == 1 && session_int(&r, 1, "tokens") > 0 &&
		session_int(&r, 1, "ttl_ms") == 3600000, "... and one has had a turn");
	reply_free(&r);
	is_int((long long)list_sessions(with_salt(pfx_job_new(PFX_JOB_SESSION_LIST), "salt"), &r), 1,
		"another salt has its own");
	reply_free(&r);
	is_int((long long)list_sessions(for_all(PFX_JOB_SESSION_LIST), &r), 3, "all salts");
	ok(strcmp(session_at(&r, 2, "salt"), "salt") == 0, "... with the salt");
	reply_free(&r);
	ask(with_session(pfx_job_new(PFX_JOB_SESSION_CLOSE), "a"), NULL);
	ask(with_session(pfx_job_new(PFX_JOB_SESSION_CLOSE), "b"), NULL);
	ask(with_salt(with_session(pfx_job_new(PFX_JOB_SESSION_CLOSE), "c"), "salt"), NULL);
	is_int((long long)list_sessions(for_all(PFX_JOB_SESSION_LIST), &r), 0, "closed ones are gone");
	reply_free(&r);
}

/* ---- named prefixes ---- */

static void expect_same(struct pfx_job *a, struct pfx_job *b, const char *what)
{
	struct reply x, y;
	char salt[32];

	snprintf(salt, sizeof(salt), "same-%d", ++n_salts);
	a->ignore_eos = b->ignore_eos = 1;
	run(e, digests(a), &x);
	run(e, with_salt(digests(b), salt), &y);
	ok(same_reply(&x, &y) && x.usage.prompt_tokens == y.usage.prompt_tokens, "%s", what);
	reply_free(&x);
	reply_free(&y);
}

static void test_prefix(void)
{
	struct ids ids = { .n = 0 };
	struct reply r, first, second, want;
	struct reply *p[] = { &first, &second };

	is_int(ask(with_prefix(text_job(PFX_JOB_PREFIX_PUT, "It was the best of ti", 0), "p"), "bytes"),
		21, "a text is put");
	expect_same(with_prefix(text_job(PFX_JOB_GENERATE, "mes, it was", 6), "p"),
		text_job(PFX_JOB_GENERATE, "It was the best of times, it was", 6),
		"text and text are joined before they are tokenised");
	expect_same(with_prefix(bare(PFX_JOB_GENERATE, 3), "p"),
		text_job(PFX_JOB_GENERATE, "It was the best of ti", 3), "a prefix alone");
	add_text(&ids, "It was the best of ti");
	add(&ids, tokens, 9);
	expect_same(with_prefix(token_job(PFX_JOB_GENERATE, tokens, 9, 4), "p"),
		token_job(PFX_JOB_GENERATE, ids.v, ids.n, 4), "text in front of ids");
	refused(with_prefix(chat_job(PFX_JOB_GENERATE, "[]", 1), "p"), PFX_FAULT_BAD_REQUEST,
		"cannot go in front of messages", "text in front of messages");
	ask(with_prefix(token_job(PFX_JOB_PREFIX_PUT, tokens, 100, 0), "q"), NULL);
	expect_same(with_prefix(token_job(PFX_JOB_GENERATE, tokens + 100, 40, 4), "q"),
		token_job(PFX_JOB_GENERATE, tokens, 140, 4), "ids in front of ids");
	ids.n = 0;
	add(&ids, tokens, 100);
	add_text(&ids, "and so on");
	expect_same(with_prefix(text_job(PFX_JOB_GENERATE, "and so on", 4), "q"),
		token_job(PFX_JOB_GENERATE, ids.v, ids.n, 4), "ids in front of text");
	ask(with_prefix(chat_job(PFX_JOB_PREFIX_PUT, "[{'role':'system','content':'S'}]", 0), "c"),
		NULL);
	expect_same(with_prefix(chat_job(PFX_JOB_GENERATE, "[{'role':'user','content':'U'}]", 4), "c"),
		chat_job(PFX_JOB_GENERATE, "[{'role':'system','content':'S'},"
			"{'role':'user','content':'U'}]", 4), "messages in front of messages");
	ask(with_session(with_prefix(chat_job(PFX_JOB_SESSION_OPEN,
		"[{'role':'user','content':'U'}]", 0), "c"), "ps"), NULL);
	expect_same(with_session(bare(PFX_JOB_GENERATE, 4), "ps"),
		chat_job(PFX_JOB_GENERATE, "[{'role':'system','content':'S'},"
			"{'role':'user','content':'U'}]", 4), "a session that begins with a prefix");
	ask(with_session(pfx_job_new(PFX_JOB_SESSION_CLOSE), "ps"), NULL);
	/* The name means something else for who comes later, and for nobody else. */
	start(e, with_prefix(digests(token_job(PFX_JOB_GENERATE, tokens + 100, 40, 4)), "q"), &first);
	start(e, with_prefix(token_job(PFX_JOB_PREFIX_PUT, tokens + 1, 50, 0), "q"), &r);
	start(e, with_prefix(digests(token_job(PFX_JOB_GENERATE, tokens + 100, 40, 4)), "q"), &second);
	wait_all(e, p, 2);
	run(e, with_salt(digests(token_job(PFX_JOB_GENERATE, tokens, 140, 4)), "pq"), &want);
	ok(same_reply(&first, &want) && second.usage.prompt_tokens == 90 && r.ended,
		"a name that is put anew takes nothing from those before");
	reply_free(&first);
	reply_free(&second);
	reply_free(&want);
	ok(json_is_true(json_object_get(r.report, "replaced")), "... and says that it was replaced");
	reply_free(&r);
	run(e, with_prefix(pfx_job_new(PFX_JOB_PREFIX_GET), "q"), &r);
	ok(json_integer_value(json_object_get(r.report, "tokens")) == 50 && json_integer_value(
		json_object_get(json_object_get(r.report, "cached"), "device")) == 50 &&
		strcmp(json_string_value(json_object_get(r.report, "kind")), "tokens") == 0,
		"get tells kind, ids and how many are cached");
	reply_free(&r);
	run(e, pfx_job_new(PFX_JOB_PREFIX_LIST), &r);
	is_int((long long)json_array_size(json_object_get(r.report, "prefixes")), 3, "list has them all");
	reply_free(&r);
	for (int i = 0; i < 3; i++) {
		ask(with_prefix(pfx_job_new(PFX_JOB_PREFIX_DELETE), &"p\0q\0c"[2 * i]), NULL);
	}
	is_int(stat_of(e, "prefixes.bytes"), 0, "when all are deleted nothing is held");
	refused(with_prefix(bare(PFX_JOB_GENERATE, 1), "p"), PFX_FAULT_NOT_FOUND, "p", "and p is gone");
}

/* ---- leases and ends ---- */

static struct pfx_job *pin(const uint32_t *v, uint32_t n, uint64_t ttl_ms)
{
	struct pfx_job *job = token_job(PFX_JOB_PIN, v, n, UINT32_MAX);

	job->ttl_ms = ttl_ms;
	return job;
}

static uint32_t cached(const uint32_t *v, uint32_t n)
{
	struct reply r;
	uint32_t tokens_cached;

	run(e, token_job(PFX_JOB_WARM, v, n, 0), &r);
	tokens_cached = r.usage.cached_device;
	if (r.kind != PFX_EVENT_DONE) {
		printf("# %s\n", r.message);
	}
	reply_free(&r);
	return tokens_cached;
}

/* Other prompts, until everything else that may go has gone. */
static void press(uint32_t n)
{
	struct pfx_rng rng = { 99 };
	uint32_t v[200];

	for (uint32_t i = 0; i < n; i++) {
		for (uint32_t k = 0; k < 200; k++) {
			v[k] = 3 + (uint32_t)pfx_rng_below(&rng, 256);
		}
		cached(v, 200);
	}
}

static json_t *pins(int all)
{
	struct pfx_job *job = pfx_job_new(PFX_JOB_PINS);
	struct reply r;
	json_t *report;

	job->all = all;
	run(e, job, &r);
	report = json_incref(r.report);
	reply_free(&r);
	return report;
}

static long long lease_field(const char *key)
{
	json_t *report = pins(0);
	long long n = json_integer_value(
		json_object_get(json_array_get(json_object_get(report, "leases"), 0), key));

	json_decref(report);
	return n;
}

static void test_leases(void)
{
	struct pfx_engine *all = e;
	struct pfx_engine_opts opts = { .model_path = model, .n_threads = 1,
		.logits_memory = 1 << 20, .device_memory = tiny_model_kv_bytes(1024),
		.pin_ttl_max_ms = 100000, .pins_max = 5 };
	struct pfx_job *job;
	json_t *report;
	struct reply r;
	uint64_t start_ns;
	long long number;

	e = open_engine(&opts);
	is_int(pfx_engine_info(e)->n_blocks, 32, "a pool of 32 blocks");
	number = ask(pin(tokens, 300, 60000), "lease");
	ok(number > 0 && lease_field("lease") == number && lease_field("tokens") == 300 &&
		lease_field("blocks") == 10, "a lease of ten blocks");
	is_int(stat_of(e, "tiers.device.leased"), 10, "is counted");
	is_int(stat_of(e, "tiers.device.running"), 0, "and nothing runs");
	press(12);
	is_int(cached(tokens, 300), 300, "it stays whatever comes");
	is_int(lease_field("hits"), 1, "and counts who begins with it");
	refused(pin(tokens + 40, 300, 0), PFX_FAULT_OVERLOADED, "leases hold 10 of the device's 32",
		"more than half of the device");
	refused(pin(tokens, 530, 0), PFX_FAULT_TOO_LONG, "at most 16", "one that is too long by itself");
	is_int(ask(pin(tokens, 500, 60000), "blocks"), 16, "what is shared counts once");
	is_int(stat_of(e, "tiers.device.leased"), 16, "half is leased now");
	refused(token_job(PFX_JOB_WARM, tokens + 50, 550, 0), PFX_FAULT_OVERLOADED, "leases hold 16",
		"a prompt that would fit without them");
	is_int(cached(tokens, 600), 500, "one that begins with them fits");
	refused(pin(tokens, 10, 100001), PFX_FAULT_BAD_REQUEST, "at most 100000", "too long a time");
	job = pfx_job_new(PFX_JOB_UNPIN);
	job->lease = (uint64_t)number;
	refused(with_salt(job, "x"), PFX_FAULT_NOT_FOUND, "no lease", "a lease of another salt");
	job = pfx_job_new(PFX_JOB_UNPIN);
	job->lease = (uint64_t)number;
	is_int(ask(job, "leases"), 1, "unpin one");
	is_int(stat_of(e, "tiers.device.leased"), 16, "the other one still holds what they shared");
	/* Exactly at its time, while nobody asks for anything. */
	start_ns = pfx_clock_ns();
	ask(pin(tokens, 32, 1500), NULL);
	is_int(stat_of(e, "leases.held"), 2, "a short one");
	while (stat_of(e, "leases.held") == 2 && pfx_clock_ns() - start_ns < 20000000000u) {
		usleep(1000);
	}
	ok(pfx_clock_ns() - start_ns >= 1500000000u, "ends at its time, not before (%.1f ms)",
		(double)(pfx_clock_ns() - start_ns) / 1e6);
	is_int(stat_of(e, "leases.expired"), 1, "and is counted");
	run(e, pfx_job_new(PFX_JOB_FLUSH), &r);
	ok(r.flushed >= 16, "a flush clears them");
	reply_free(&r);
	is_int(stat_of(e, "leases.held"), 0, "ends the leases on what it clears");
	is_int(stat_of(e, "tiers.device.free"), 32, "so that all is free");
	/* With a named prefix. */
	job = with_prefix(token_job(PFX_JOB_PREFIX_PUT, tokens, 100, 0), "p");
	job->warm = job->pin = 1;
	ok(ask(job, "lease") > 0, "a prefix is put with a lease");
	report = pins(1);
	ok(strcmp(json_string_value(json_object_get(json_array_get(json_object_get(report, "leases"),
		0), "prefix")), "p") == 0, "which has its name");
	json_decref(report);
	ask(with_prefix(pfx_job_new(PFX_JOB_PIN), "p"), "lease");
	is_int(stat_of(e, "leases.held"), 2, "pinned by name once more");
	job = with_prefix(token_job(PFX_JOB_PREFIX_PUT, tokens + 1, 100, 0), "p");
	job->warm = job->pin = 1;
	ask(job, NULL);
	is_int(stat_of(e, "leases.held"), 2, "put anew, its lease is a new one; the other stays");
	is_int(ask(with_prefix(pfx_job_new(PFX_JOB_PREFIX_DELETE), "p"), "leases"), 1,
		"and it ends with the name");
	job = pfx_job_new(PFX_JOB_UNPIN);
	job->all = 1;
	is_int(ask(job, "leases"), 1, "unpin all");
	is_int(stat_of(e, "tiers.device.leased"), 0, "nothing is leased");
	for (int i = 0; i < 5; i++) {
		ask(pin(tokens, 5, 0), NULL);
	}
	refused(pin(tokens, 5, 0), PFX_FAULT_OVERLOADED, "5 leases", "too many leases");
	is_int(problems(e), 0, "no problems");
	pfx_engine_close(e);
	e = all;
}

/* What was told to be over goes first, what was told to stay goes last. */
static void test_signals(void)
{
	struct pfx_engine *all = e;
	struct pfx_engine_opts opts = { .model_path = model, .n_threads = 1,
		.logits_memory = 1 << 20, .device_memory = tiny_model_kv_bytes(1024) };
	struct pfx_job *job;
	uint32_t v[4][200];
	struct pfx_rng rng = { 0x5eed0007 };
	struct reply r;

	for (uint32_t i = 0; i < 800; i++) {
		v[i / 200][i % 200] = 3 + (uint32_t)pfx_rng_below(&rng, 256);
	}
	e = open_engine(&opts);
	cached(v[0], 200); /* the oldest */
	job = token_job(PFX_JOB_WARM, v[1], 200, 0);
	job->last_turn = 1;
	run(e, job, &r);
	reply_free(&r);
	cached(v[2], 200);
	ok(ask(token_job(PFX_JOB_END, v[2], 200, 0), "cached_tokens") == 200, "an end");
	press(3);
	is_int(cached(v[0], 200), 200, "what is over goes before what is older");
	ok(cached(v[1], 200) < 200, "last_turn");
	flush(e);
	job = token_job(PFX_JOB_WARM, v[3], 200, 0);
	job->ttl_ms = 60000;
	run(e, job, &r);
	reply_free(&r);
	press(12);
	is_int(cached(v[3], 200), 200, "what has a ttl goes after what is younger");
	ok(cached(tokens, 600) < 32, "a prompt that needs almost all of the memory");
	run(e, token_job(PFX_JOB_GENERATE, tokens, 600, 400), &r);
	ok(r.kind == PFX_EVENT_DONE && r.n > 300, "and a reply that needs the rest, are not refused");
	reply_free(&r);
	ok(cached(v[3], 200) < 200, "the floor has yielded");
	is_int(problems(e), 0, "no problems");
	pfx_engine_close(e);
	e = all;
}

/* Who waits finds what it will need, though it was the oldest when room got short. */
static void test_look_ahead(void)
{
	struct pfx_engine *all = e;
	struct pfx_engine_opts opts = { .model_path = model, .n_threads = 1, .max_requests = 1,
		.logits_memory = 1 << 20, .device_memory = tiny_model_kv_bytes(1024),
		.eviction = PFX_EVICTION_LRU };
	struct reply runs, waits, *p[] = { &runs, &waits };
	uint32_t v[3][200];
	struct pfx_rng rng = { 0x5eed0008 };

	for (uint32_t i = 0; i < 600; i++) {
		v[i / 200][i % 200] = 3 + (uint32_t)pfx_rng_below(&rng, 256);
	}
	for (int waiting = 0; waiting < 2; waiting++) {
		e = open_engine(&opts);
		for (int i = 0; i < 3; i++) {
			cached(v[i], 200);
		}
		start(e, token_job(PFX_JOB_GENERATE, tokens, 200, 400), p[0]);
		if (waiting) {
			start(e, token_job(PFX_JOB_WARM, v[0], 200, 0), p[1]);
			wait_all(e, p, 2);
			ok(waits.usage.cached_device >= 199, "what waits is not evicted (%u cached)",
				waits.usage.cached_device);
			reply_free(&waits);
		} else {
			wait_all(e, p, 1);
			ok(cached(v[0], 200) < 199, "while nobody waits the oldest goes");
		}
		reply_free(&runs);
		pfx_engine_close(e);
	}
	e = all;
}

/* ---- bounds ---- */

static void test_bounds(void)
{
	struct pfx_engine *all = e;
	struct pfx_engine_opts opts = { .model_path = model, .device_memory = 1 << 22,
		.sessions_max = 3, .sessions_space_max = 2, .session_bytes_max = 10000,
		.prefixes_max = 3, .prefixes_space_max = 2, .prefix_bytes_max = 1000, .n_threads = 1 };
	static char big[4000];
	struct pfx_job *job;
	struct reply r[2], *p[] = { &r[0], &r[1] };

	memset(big, 'x', sizeof(big) - 1);
	e = open_engine(&opts);
	ask(with_session(bare(PFX_JOB_SESSION_OPEN, 0), "a"), NULL);
	ask(with_salt(with_session(bare(PFX_JOB_SESSION_OPEN, 0), "a"), "salt"), NULL);
	refused(with_session(bare(PFX_JOB_SESSION_OPEN, 0), "b"), PFX_FAULT_OVERLOADED,
		"namespace has 2", "too many sessions of a namespace, whatever the salts");
	job = with_session(bare(PFX_JOB_SESSION_OPEN, 0), "c");
	job->space = pfx_strdup("other");
	job->space_len = 5;
	is_int(ask(job, NULL), 0, "another namespace has its own count");
	job = with_session(bare(PFX_JOB_SESSION_OPEN, 0), "d");
	job->space = pfx_strdup("third");
	job->space_len = 5;
	refused(job, PFX_FAULT_OVERLOADED, "3 sessions", "too many in all");
	job = with_session(text_job(PFX_JOB_SESSION_APPEND, big, 0), "a");
	job->bytes = 9990;
	refused(job, PFX_FAULT_OVERLOADED, "bytes", "too many bytes");
	ask(with_session(pfx_job_new(PFX_JOB_SESSION_CLOSE), "a"), NULL);
	job = bare(PFX_JOB_SESSION_OPEN, 0);
	job->ttl_ms = 1500; /* time enough to be asked for */
	ask(with_session(job, "brief"), NULL);
	is_int(ask(with_session(text_job(PFX_JOB_SESSION_APPEND, "x", 0), "brief"), NULL), 0,
		"a session with a short life");
	usleep(1600000);
	refused(with_session(bare(PFX_JOB_GENERATE, 1), "brief"), PFX_FAULT_NOT_FOUND, "brief",
		"is gone when nothing is said");
	is_int(stat_of(e, "sessions.expired"), 1, "... and counted");
	ask(with_prefix(text_job(PFX_JOB_PREFIX_PUT, "1", 0), "1"), NULL);
	ask(with_prefix(text_job(PFX_JOB_PREFIX_PUT, "2", 0), "2"), NULL);
	refused(with_prefix(text_job(PFX_JOB_PREFIX_PUT, "3", 0), "3"), PFX_FAULT_OVERLOADED,
		"namespace has 2", "too many prefixes of a namespace");
	refused(with_prefix(text_job(PFX_JOB_PREFIX_PUT, big, 0), "2"), PFX_FAULT_OVERLOADED, "1000",
		"too many bytes of prefixes");
	is_int(ask(with_prefix(text_job(PFX_JOB_PREFIX_PUT, "new", 0), "2"), "bytes"), 3,
		"what is there can be put anew");
	/* The engine may close with turns that run and wait. */
	job = text_job(PFX_JOB_GENERATE, "x", 100000);
	job->ignore_eos = 1;
	ask(with_session(bare(PFX_JOB_SESSION_OPEN, 0), "end"), NULL);
	start(e, with_session(job, "end"), p[0]);
	start(e, with_session(text_job(PFX_JOB_GENERATE, "x", 5), "end"), p[1]);
	pfx_engine_close(e);
	reply_free(&r[0]);
	reply_free(&r[1]);
	e = all;
}

/* Thousands of sessions, and names drawn from bytes of any kind. */
static void test_many(void)
{
	enum { N = 10000 };
	struct reply *r = calloc(N, sizeof(*r)), *p;
	uint64_t start_ns = pfx_clock_ns();
	char name[64];
	int good = 0;

	for (int i = 0; i < N; i++) {
		snprintf(name, sizeof(name), "s%d\xff\x01 %d", i, i * 7);
		p = &r[i];
		start(e, with_session(text_job(PFX_JOB_SESSION_OPEN, "abc", 0), name), p);
		if (i % 500 == 499) {
			wait_all(e, &p, 1);
		}
	}
	for (int i = 0; i < N; i++) {
		p = &r[i];
		wait_all(e, &p, 1);
		good += r[i].kind == PFX_EVENT_REPORT;
		reply_free(&r[i]);
	}
	is_int(good, N, "ten thousand sessions");
	is_int(stat_of(e, "sessions.open"), N, "are open");
	refused(with_session(bare(PFX_JOB_SESSION_OPEN, 0), "more"), PFX_FAULT_OVERLOADED, "10000",
		"and no more");
	printf("# %.1f us each, %lld bytes each\n", (double)(pfx_clock_ns() - start_ns) / 1e3 / N,
		stat_of(e, "sessions.bytes") / N);
	for (int i = 0; i < N; i++) {
		snprintf(name, sizeof(name), "s%d\xff\x01 %d", i, i * 7);
		p = &r[i];
		start(e, with_session(pfx_job_new(PFX_JOB_SESSION_CLOSE), name), p);
		if (i % 500 == 499) {
			wait_all(e, &p, 1);
		}
	}
	for (int i = 0; i < N; i++) {
		p = &r[i];
		wait_all(e, &p, 1);
		reply_free(&r[i]);
	}
	is_int(stat_of(e, "sessions.open"), 0, "and all can be closed");
	is_int(stat_of(e, "sessions.bytes"), 0, "with nothing left of them");
	free(r);
}

int main(void)
{
	struct pfx_engine_opts opts = { .n_threads = 1 };
	struct pfx_rng rng;
	uint64_t live, seed = seed_from_environment();

	printf("# PFX_TEST_SEED=%llu\n", (unsigned long long)seed);
	rng.state = seed;
	model = tiny_model("life", 11);
	opts.model_path = model;
	opts.device_memory = tiny_model_kv_bytes(20000);
	opts.logits_memory = 1 << 20;
	live = pfx_alloc_live();
	e = open_engine(&opts);
	for (uint32_t i = 0; i < 600; i++) {
		tokens[i] = 3 + (uint32_t)pfx_rng_below(&rng, 256);
	}
	test_conversation();
	test_append_and_warm();
	test_run();
	test_stop();
	test_order();
	test_trouble();
	test_apart();
	test_roles();
	test_session_list();
	test_prefix();
	test_leases();
	test_signals();
	test_look_ahead();
	test_bounds();
	test_many();
	is_int(problems(e), 0, "no problems at the end");
	is_int(stat_of(e, "tiers.device.running"), 0, "nothing runs");
	pfx_engine_close(e);
	unlink(model);
	is_int((long long)pfx_alloc_live(), (long long)live, "nothing is left allocated");
	return tap_done();
}

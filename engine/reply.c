/*
 * From logits to events: sampling, the stream of text, stop strings, and how a reply ends.
 */
#include "config.h"

#include "engine/engine_priv.h"

#include <string.h>
#include <xxhash.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "engine/profile.h"

/* Length of the longest end of text[0..n) that a stop string begins with. */
static size_t possible_stop(const struct pfx_job *job, const char *text, size_t n)
{
	size_t longest = 0, k;

	for (uint32_t i = 0; i < job->n_stop; i++) {
		k = job->stop_len[i] - 1 < n ? job->stop_len[i] - 1 : n;
		for (; k > longest; k--) {
			if (memcmp(text + n - k, job->stop[i], k) == 0) {
				longest = k;
				break;
			}
		}
	}
	return longest;
}

/* Offset of the first stop string in text[0..n); n when there is none. */
static size_t find_stop(const struct pfx_job *job, const char *text, size_t n)
{
	size_t first = n;
	const char *at;

	for (uint32_t i = 0; i < job->n_stop; i++) {
		at = memmem(text, n, job->stop[i], job->stop_len[i]);
		if (at != NULL && (size_t)(at - text) < first) {
			first = (size_t)(at - text);
		}
	}
	return first;
}

/*
 * Moves from held what can be shown now into the event. Returns 1 when a stop string was met: its
 * text and what follows is dropped.
 */
static int release_text(struct pfx_request *r, int all, struct pfx_event *ev)
{
	const struct pfx_job *job = r->job;
	char *text = r->held.data;
	size_t n = r->held.len, show = n, stop;

	if (n == 0) {
		return 0;
	}
	stop = find_stop(job, text, n);
	if (stop < n) {
		show = stop;
	} else if (!all) {
		show = n - possible_stop(job, text, n);
	}
	memcpy(pfx_event_text(ev, show), text, show);
	ev->text[show] = 0;
	if (stop < n) {
		r->held.len = 0;
		return 1;
	}
	memmove(text, text + show, n - show);
	r->held.len = n - show;
	return 0;
}

static uint64_t digest_of(const float *logits, uint32_t n)
{
	/* Defined over little-endian float32, which is what all our machines hold. */
	return XXH3_64bits(logits, (size_t)n * sizeof(*logits));
}

static void add_logprobs(const struct pfx_engine *e, const struct pfx_job *job,
	struct pfx_event *ev, const float *logits, uint32_t token)
{
	double lse;

	if (job->digest) {
		ev->has_digest = 1;
		ev->digest = digest_of(logits, e->info.n_vocab);
	}
	if (job->logprobs < 0) {
		return;
	}
	lse = pfx_log_sum_exp(logits, e->info.n_vocab);
	ev->has_logprob = 1;
	ev->logprob = (float)((double)logits[token] - lse);
	ev->n_top = pfx_top_n(logits, e->info.n_vocab, lse, pfx_event_top(ev),
		(uint32_t)job->logprobs);
}

static uint32_t choose(struct pfx_engine *e, const struct pfx_request *r, const float *logits)
{
	const struct pfx_job *job = r->job;
	struct pfx_sampling how = {
		.temperature = job->temperature,
		.top_k = job->top_k,
		.top_p = job->top_p,
		.min_p = job->min_p,
		.repeat_penalty = job->repeat_penalty,
		.seed = job->seed,
		.position = r->tokens.n,
		.context = r->tokens.v,
		.n_context = (uint32_t)r->tokens.n,
	};

	return pfx_sample(e->sampler, logits, &how);
}

/* No room for another token: the reply's own bound, the context, or the whole KV memory. */
static int at_limit(const struct pfx_engine *e, const struct pfx_request *r)
{
	uint64_t memory = (uint64_t)e->info.n_blocks * e->info.block_tokens;

	return r->n_reply >= r->job->max_tokens || r->tokens.n >= e->info.context ||
		r->tokens.n > memory;
}

/* Where a prompt ended its logits are kept, for the next one who asks exactly that. */
static void keep_logits(struct pfx_engine *e, struct pfx_request *r, const float *logits)
{
	uint32_t slot;

	if (r->n_reply > 0 || r->job->kind == PFX_JOB_SCORE || r->unshared ||
		pfx_path_len(r->path) != r->n_prompt) {
		return;
	}
	slot = pfx_path_mark(r->path);
	if (slot != PFX_MARK_NONE && pfx_keep_at(e->keep, slot) != logits) {
		memcpy(pfx_keep_at(e->keep, slot), logits, e->info.n_vocab * sizeof(*logits));
	}
}

void pfx_reply_logits(struct pfx_engine *e, struct pfx_request *r, const float *logits)
{
	const struct pfx_job *job = r->job;
	struct pfx_event *ev;
	struct pfx_profile *profile = pfx_model_profile(e->model);
	uint32_t token;
	int stopped = 0, ended;

	if (r->first_ns == 0) {
		r->first_ns = pfx_clock_ns();
	}
	keep_logits(e, r, logits);
	if (job->kind == PFX_JOB_SCORE) {
		pfx_end(e, r, PFX_FINISH_STOP);
		return;
	}
	if (job->kind != PFX_JOB_GENERATE || job->max_tokens == 0) {
		pfx_end(e, r, PFX_FINISH_LENGTH);
		return;
	}
	pfx_profile_lap(profile, PFX_PHASE_REPLY, 0);
	token = choose(e, r, logits);
	pfx_profile_lap(profile, PFX_PHASE_SAMPLE, 0);
	if (token == UINT32_MAX) {
		pfx_request_fail(r, PFX_FAULT_INTERNAL, "the model gave no finite logits");
		pfx_end_fault(e, r);
		return;
	}
	ev = pfx_event_of_step(e, PFX_EVENT_TOKEN, job);
	ev->token = token;
	add_logprobs(e, job, ev, logits, token);
	pfx_request_push_tokens(r, &token, 1);
	r->n_reply++;
	r->usage.completion_tokens++;
	e->n.generated++;
	ended = !job->ignore_eos && pfx_tokenizer_is_end(e->tokenizer, token);
	/* The end-of-turn token has no text of its own; what was held back before it comes out. */
	if (!ended) {
		pfx_detok_push(e->tokenizer, &r->detok, token, &r->held);
	}
	if (ended || at_limit(e, r)) {
		pfx_detok_end(e->tokenizer, &r->detok, &r->held);
	}
	stopped = release_text(r, ended || at_limit(e, r), ev);
	if (r->session != NULL) {
		pfx_buf_add(&r->said, ev->text, ev->text_len);
	}
	pfx_events_post(e, ev);
	if (ended || stopped) {
		pfx_end(e, r, PFX_FINISH_STOP);
	} else if (at_limit(e, r)) {
		pfx_end(e, r, PFX_FINISH_LENGTH);
	}
}

void pfx_reply_score(struct pfx_engine *e, struct pfx_request *r, uint32_t pos,
	const float *logits)
{
	const struct pfx_job *job = r->job;
	double lse = pfx_log_sum_exp(logits, e->info.n_vocab);
	uint32_t width = job->logprobs > 0 ? (uint32_t)job->logprobs : 0;
	uint32_t at = pos + 1 - job->from, total = r->n_prompt - job->from;

	/* A preempted request runs some positions again; they give the same bits. */
	if (r->score == NULL) {
		r->score = pfx_xcalloc(total, sizeof(*r->score));
		r->score_top = pfx_xcalloc((size_t)total * width, sizeof(*r->score_top));
	}
	r->score[at] = (float)((double)logits[r->tokens.v[pos + 1]] - lse);
	if (width > 0) {
		pfx_top_n(logits, e->info.n_vocab, lse, r->score_top + (size_t)at * width, width);
	}
	if (at + 1 > r->n_score) {
		r->n_score = at + 1;
	}
}

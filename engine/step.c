/* One step: build the batch from the requests that take part, run it, hand out the results. */
#include "engine/engine_priv.h"

#include "base/assert.h"
#include "base/clock.h"
#include "base/log.h"
#include "engine/profile.h"

/* Rows of a request whose logits are wanted: SCORE's positions, and the last of all. */
static uint32_t first_out(const struct pfx_request *r)
{
	uint32_t end = r->step_from + r->step_rows;
	uint32_t first = end == r->tokens.n ? end - 1 : end;

	if (r->job->kind == PFX_JOB_SCORE && r->job->from - 1 < first) {
		first = r->job->from - 1 > r->step_from ? r->job->from - 1 : r->step_from;
	}
	return first;
}

static void add_to_batch(struct pfx_engine *e, struct pfx_batch *batch, struct pfx_request *r)
{
	struct pfx_batch_seq *seq = &e->step_seqs[batch->n_seqs];
	uint32_t n_blocks;

	PFX_ASSERT(batch->n_rows + r->step_rows <= e->rows_max);
	e->step_requests[batch->n_seqs++] = r;
	seq->first_row = batch->n_rows;
	seq->n_rows = r->step_rows;
	seq->pos0 = r->step_from;
	seq->write_from = pfx_path_len(r->path);
	seq->blocks = pfx_path_blocks(r->path, &n_blocks);
	seq->n_blocks = n_blocks;
	for (uint32_t i = 0; i < r->step_rows; i++) {
		e->step_tokens[batch->n_rows + i] = r->tokens.v[r->step_from + i];
	}
	r->step_out = batch->n_out;
	for (uint32_t pos = first_out(r); pos < r->step_from + r->step_rows; pos++) {
		e->step_out_rows[batch->n_out++] = batch->n_rows + pos - r->step_from;
	}
	r->step_n_out = batch->n_out - r->step_out;
	batch->n_rows += r->step_rows;
}

static int copy_blocks(struct pfx_engine *e, uint32_t n_seqs)
{
	struct pfx_request *r;
	int rc;

	for (uint32_t i = 0; i < n_seqs; i++) {
		r = e->step_requests[i];
		if (r->copy.n == 0) {
			continue;
		}
		rc = pfx_model_copy_block(e->model, r->copy.dst, r->copy.src, r->copy.n);
		if (rc != 0) {
			return rc;
		}
		r->copy.n = 0;
	}
	return 0;
}

static void post_progress(struct pfx_engine *e, struct pfx_request *r)
{
	struct pfx_event *ev;

	if (!r->job->progress || r->step_from >= r->n_prompt) {
		return;
	}
	ev = pfx_event_of_step(e, PFX_EVENT_PREFILL, r->job);
	ev->done = r->step_from + r->step_rows;
	ev->total = r->n_prompt;
	pfx_events_post(e, ev);
}

/* What was computed becomes everybody's before anything is said about it. */
static void publish(struct pfx_engine *e, struct pfx_request *r)
{
	uint32_t upto = r->step_from + r->step_rows;
	uint32_t again = r->counted < r->n_prompt ? r->counted : r->n_prompt;

	if (r->step_from < again) {
		r->recomputed += (again < upto ? again : upto) - r->step_from;
		e->n.recomputed += (again < upto ? again : upto) - r->step_from;
	}
	if (upto > pfx_path_len(r->path) && pfx_path_publish(r->path, r->tokens.v, upto) != 0) {
		pfx_warn("engine", "no memory to publish a prefix; it is not cached tokens=%u", upto);
	}
	pfx_usage_computed(e, r, upto);
	post_progress(e, r);
}

/* The row of out row i lies at this position of r. */
static uint32_t out_position(const struct pfx_request *r, uint32_t i)
{
	return r->step_from + r->step_rows - r->step_n_out + (i - r->step_out);
}

static void deliver(struct pfx_engine *e, struct pfx_request *r, uint32_t i, const float *logits)
{
	uint32_t pos = out_position(r, i);

	if (r->job->kind == PFX_JOB_SCORE && pos + 1 >= r->job->from && pos + 1 < r->n_prompt) {
		pfx_reply_score(e, r, pos, logits);
	}
	if (pos + 1 == r->tokens.n) {
		pfx_reply_logits(e, r, logits);
	}
}

static int deliver_all(struct pfx_engine *e, const struct pfx_batch *batch)
{
	uint32_t seq = 0, n;
	const float *logits;
	int rc;

	for (uint32_t first = 0; first < batch->n_out; first += n) {
		n = batch->n_out - first < e->out_rows_max ? batch->n_out - first : e->out_rows_max;
		rc = pfx_model_logits(e->model, first, n, &logits);
		if (rc != 0) {
			return rc;
		}
		for (uint32_t i = first; i < first + n; i++) {
			/* Read before delivery: the last row of a request may free it. */
			while (i >= e->step_requests[seq]->step_out + e->step_requests[seq]->step_n_out) {
				seq++;
			}
			struct pfx_request *r = e->step_requests[seq];
			if (i + 1 == r->step_out + r->step_n_out) {
				seq++;
			}
			deliver(e, r, i, logits + (size_t)(i - first) * e->info.n_vocab);
		}
		pfx_profile_lap(pfx_model_profile(e->model), PFX_PHASE_REPLY, 0);
	}
	return 0;
}

static void fail_all(struct pfx_engine *e, const struct pfx_batch *batch, int rc)
{
	pfx_error("engine", "a step failed: code=%d requests=%u", rc, batch->n_seqs);
	for (struct pfx_list *it = e->active.next, *next; it != &e->active; it = next) {
		struct pfx_request *r = pfx_container_of(it, struct pfx_request, link);
		next = it->next;
		if (r->step_rows == 0) {
			continue;
		}
		pfx_request_fail(r, PFX_FAULT_INTERNAL, "the device failed in this step");
		pfx_end_fault(e, r);
	}
}

/* Learns what a prompt row costs from steps that are mostly prefill. */
static void learn_cost(struct pfx_engine *e, uint32_t n_rows, uint64_t ns)
{
	double per_row = (double)ns / n_rows;

	if (n_rows < 16) {
		return;
	}
	e->ns_per_row = e->ns_per_row == 0 ? per_row : 0.75 * e->ns_per_row + 0.25 * per_row;
}

void pfx_step_run(struct pfx_engine *e)
{
	struct pfx_batch batch = {
		.tokens = e->step_tokens,
		.seqs = e->step_seqs,
		.out_rows = e->step_out_rows,
	};
	struct pfx_profile *profile = pfx_model_profile(e->model);
	uint64_t start = pfx_clock_ns();
	int rc;

	pfx_list_for(it, &e->active) {
		struct pfx_request *r = pfx_container_of(it, struct pfx_request, link);
		if (r->step_rows > 0) {
			add_to_batch(e, &batch, r);
		}
	}
	if (batch.n_seqs == 0) {
		return;
	}
	pfx_profile_begin(profile, batch.n_rows, batch.n_seqs);
	e->progress++;
	e->step_rows = batch.n_rows;
	rc = copy_blocks(e, batch.n_seqs);
	if (rc == 0) {
		rc = pfx_model_forward(e->model, &batch);
	}
	if (rc != 0) {
		pfx_profile_end(profile);
		fail_all(e, &batch, rc);
		return;
	}
	e->n.steps++;
	e->n.rows += batch.n_rows;
	learn_cost(e, batch.n_rows, pfx_clock_ns() - start);
	for (uint32_t i = 0; i < batch.n_seqs; i++) {
		publish(e, e->step_requests[i]);
	}
	pfx_profile_lap(profile, PFX_PHASE_PUBLISH, 0);
	rc = deliver_all(e, &batch);
	pfx_profile_end(profile);
	if (rc != 0) {
		fail_all(e, &batch, rc);
	}
}

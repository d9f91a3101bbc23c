/*
 * Drivers of RoPE, the write of KV, and attention. A batch is planned once, in begin: each
 * sequence's rows are cut into tiles, and a tile is either walked through all of its
 * segments by one task (prefill), or has each segment computed by a task of its own and
 * merged afterwards (decode, where there are few rows and long KV). Both do the same
 * operations in the same order.
 *
 * Sequences that decode behind one prefix have its blocks in common. A segment that several of
 * them see whole is then one task for all their rows: its KV is read once for the whole group.
 * What a row gets of a segment does not depend on the rows beside it, so no bit changes.
 */
#include "config.h"

#include <errno.h>
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "kernels/cpu/cpu.h"

#define TILE_ROWS 32u /* rows of a task in prefill */
#define SPLIT_ROWS 8u /* sequences with at most so many rows have their segments split */
#define ROPE_ROWS 8u
#define NOBODY UINT32_MAX

static uint32_t n_segments(uint32_t pos)
{
	return pos / PFX_SEGMENT + 1;
}

/* Room for one more element of `size` bytes in a list that has n. */
static int grow(void *list, uint32_t n, uint32_t *cap, size_t size)
{
	void **at = list;

	if (n == *cap) {
		uint32_t grown = *cap * 2 + 64;
		void *p = pfx_reallocarray(*at, grown, size);
		if (p == NULL) {
			return -ENOMEM;
		}
		*at = p;
		*cap = grown;
	}
	return 0;
}

static int push(struct pfx_attn_unit **list, uint32_t *n, uint32_t *cap, struct pfx_attn_unit u)
{
	int e = grow(list, *n, cap, sizeof(u));

	if (e == 0) {
		(*list)[(*n)++] = u;
	}
	return e;
}

static int plan_seq(struct pfx_plan *plan, const struct pfx_batch_seq *s, uint32_t seq)
{
	uint32_t rows = s->n_rows, segs;
	int e = 0;

	if (rows <= SPLIT_ROWS) {
		segs = n_segments(s->pos0 + rows - 1);
		struct pfx_attn_unit u = { seq, s->first_row, rows, 0, segs, plan->n_parts, NOBODY };
		if (segs == 1) {
			return push(&plan->units, &plan->n_units, &plan->units_cap, u);
		}
		plan->n_parts += segs * rows;
		return push(&plan->merges, &plan->n_merges, &plan->merges_cap, u);
	}
	/* The last rows see the most KV: first, so that no thread is left with one at the end. */
	for (uint32_t end = rows; end > 0 && e == 0;) {
		uint32_t n = (end - 1) % TILE_ROWS + 1;
		end -= n;
		struct pfx_attn_unit u = { seq, s->first_row + end, n, 0,
			n_segments(s->pos0 + end + n - 1), 0, NOBODY };
		e = push(&plan->units, &plan->n_units, &plan->units_cap, u);
	}
	return e;
}

static int add_members(struct pfx_plan *plan, const struct pfx_attn_unit *m, uint32_t seg)
{
	for (uint32_t i = 0; i < m->n_rows; i++) {
		int e = grow(&plan->members, plan->n_members, &plan->members_cap, sizeof(*plan->members));
		if (e != 0) {
			return e;
		}
		plan->members[plan->n_members++] = (struct pfx_attn_member){ m->row + i,
			m->part + seg * m->n_rows + i };
	}
	return 0;
}

/* Segment seg for merges[i] and all that follow it there, at most TILE_ROWS rows a task. */
static int plan_group(struct pfx_plan *plan, uint32_t i, uint32_t seg)
{
	struct pfx_attn_unit u = { plan->merges[i].seq, 0, 0, seg, seg + 1, 0, plan->n_members };
	int e = 0;

	for (; i != NOBODY && e == 0; i = plan->next[i]) {
		const struct pfx_attn_unit *m = &plan->merges[i];
		if (u.n_rows + m->n_rows > TILE_ROWS) {
			e = push(&plan->units, &plan->n_units, &plan->units_cap, u);
			u.member = plan->n_members;
			u.n_rows = 0;
		}
		u.n_rows += m->n_rows;
		e = e == 0 ? add_members(plan, m, seg) : e;
	}
	return e == 0 ? push(&plan->units, &plan->n_units, &plan->units_cap, u) : e;
}

/* Do all rows of both see the whole of the segment, in the same blocks? */
static int shares(const struct pfx_batch *batch, const struct pfx_attn_unit *a,
	const struct pfx_attn_unit *b, uint32_t seg, uint32_t per_segment)
{
	const struct pfx_batch_seq *x = &batch->seqs[a->seq], *y = &batch->seqs[b->seq];
	uint64_t end = (seg + 1ull) * PFX_SEGMENT;

	return x->pos0 + 1ull >= end && y->pos0 + 1ull >= end &&
		memcmp(x->blocks + (size_t)seg * per_segment, y->blocks + (size_t)seg * per_segment,
			per_segment * sizeof(*x->blocks)) == 0;
}

/*
 * Who leads whom in segment seg: the first sequence with the same blocks. What is shared is the
 * begin of prompts, so only those are compared that had one leader in the segment before. Returns
 * how many are not alone.
 */
static uint32_t find_leaders(struct pfx_plan *plan, const struct pfx_batch *batch, uint32_t seg,
	uint32_t per_segment)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < plan->n_merges; i++) {
		plan->next[i] = NOBODY;
	}
	/* Downwards: those before i still have their leaders of the segment before. */
	for (uint32_t i = plan->n_merges; i-- > 0;) {
		uint32_t before = plan->leader[i], lead = before;
		while (lead < i && !(plan->leader[lead] == before &&
			shares(batch, &plan->merges[lead], &plan->merges[i], seg, per_segment))) {
			lead++;
		}
		plan->leader[i] = lead;
		if (lead < i) {
			plan->next[i] = plan->next[lead];
			plan->next[lead] = i;
			n++;
		}
	}
	return n;
}

/* The tasks of those sequences whose segments are computed apart. */
static int plan_segments(struct pfx_plan *plan, const struct pfx_batch *batch, uint32_t per_segment)
{
	uint32_t n_shared = plan->n_merges, n_segs = 0;
	int e = 0;

	if (plan->n_merges > plan->leaders_cap) {
		pfx_free(plan->leader);
		plan->leaders_cap = 0;
		plan->leader = pfx_reallocarray(NULL, plan->n_merges, 2 * sizeof(*plan->leader));
		if (plan->leader == NULL) {
			return -ENOMEM;
		}
		plan->leaders_cap = plan->n_merges;
	}
	plan->next = plan->leader + plan->n_merges;
	for (uint32_t i = 0; i < plan->n_merges; i++) {
		plan->leader[i] = 0;
		n_segs = plan->merges[i].seg1 > n_segs ? plan->merges[i].seg1 : n_segs;
	}
	for (uint32_t seg = 0; seg < n_segs && e == 0; seg++) {
		n_shared = n_shared > 0 ? find_leaders(plan, batch, seg, per_segment) : 0;
		for (uint32_t i = 0; i < plan->n_merges && e == 0; i++) {
			if (plan->leader[i] == i && seg < plan->merges[i].seg1) {
				e = plan_group(plan, i, seg);
			}
		}
	}
	return e;
}

static int grow_rows(struct pfx_plan *plan, uint32_t n_rows, uint32_t n_dims)
{
	if (n_rows <= plan->rows_cap && n_dims <= plan->dims_cap) {
		return 0;
	}
	plan->rows_cap = 0;
	pfx_free(plan->pos);
	pfx_free(plan->seq);
	pfx_free(plan->cs);
	plan->pos = pfx_reallocarray(NULL, n_rows, sizeof(*plan->pos));
	plan->seq = pfx_reallocarray(NULL, n_rows, sizeof(*plan->seq));
	plan->cs = pfx_reallocarray(NULL, n_rows, (n_dims + 1) * sizeof(*plan->cs));
	if (plan->pos == NULL || plan->seq == NULL || plan->cs == NULL) {
		return -ENOMEM;
	}
	plan->rows_cap = n_rows;
	plan->dims_cap = n_dims;
	return 0;
}

static void fill_cs(void *arg, uint32_t task, uint32_t thread)
{
	struct pfx_device *dev = arg;
	const struct pfx_rope *rope = &dev->rope;
	uint32_t half = rope->n_dims / 2, end = (task + 1) * ROPE_ROWS;

	for (uint32_t i = task * ROPE_ROWS; i < end && i < dev->batch->n_rows; i++) {
		float *cs = dev->plan.cs + (size_t)i * rope->n_dims;
		for (uint32_t j = 0; j < half; j++) {
			double angle = (double)dev->plan.pos[i] * (double)rope->inv_freq[j];
			cs[j] = (float)cos(angle) * rope->magnitude;
			cs[half + j] = (float)sin(angle) * rope->magnitude;
		}
	}
}

int pfx_plan_batch(struct pfx_device *dev, const struct pfx_batch *batch)
{
	struct pfx_plan *plan = &dev->plan;
	uint32_t next = 0;

	plan->n_units = plan->n_merges = plan->n_parts = plan->n_members = 0;
	plan->per_segment = 0;
	int e = grow_rows(plan, batch->n_rows, dev->rope.n_dims);
	for (uint32_t i = 0; i < batch->n_seqs && e == 0; i++) {
		const struct pfx_batch_seq *s = &batch->seqs[i];
		PFX_ASSERT(s->first_row == next && s->n_rows != 0);
		PFX_ASSERT(s->n_rows <= batch->n_rows - next);
		next += s->n_rows;
		for (uint32_t j = 0; j < s->n_rows; j++) {
			plan->pos[s->first_row + j] = s->pos0 + j;
			plan->seq[s->first_row + j] = i;
		}
		e = plan_seq(plan, s, i);
	}
	if (e != 0) {
		return e;
	}
	PFX_ASSERT(next == batch->n_rows);
	pfx_pool_run(dev->pool, fill_cs, dev, (batch->n_rows + ROPE_ROWS - 1) / ROPE_ROWS);
	return 0;
}

void pfx_plan_free(struct pfx_plan *plan)
{
	pfx_free(plan->pos);
	pfx_free(plan->seq);
	pfx_free(plan->cs);
	pfx_free(plan->units);
	pfx_free(plan->merges);
	pfx_free(plan->members);
	pfx_free(plan->leader);
}

struct rope_job {
	struct pfx_device *dev;
	struct pfx_kv *kv;
	uint32_t layer, n_heads, width;
	const float *q_norm, *k_norm;
	float eps;
	float *qkv;
};

/* K and V of one position and KV head, brought to the arena's type. */
static void write_f16(const struct rope_job *job, uint32_t block, uint32_t h, uint32_t at,
	const float *k, const float *v)
{
	const struct pfx_variant *variant = job->dev->variant;
	uint32_t dim = job->kv->shape.head_dim, b = job->kv->shape.block_tokens, amax = 0;
	uint16_t *kb = pfx_kv_plane(job->kv, block, job->layer, PFX_KV_K, h), half[PFX_TILE];
	uint16_t *vb = pfx_kv_plane(job->kv, block, job->layer, PFX_KV_V, h);
	uint8_t *ke = pfx_kv_marks(job->kv, block, job->layer, PFX_KV_K, h);
	uint8_t *ve = pfx_kv_marks(job->kv, block, job->layer, PFX_KV_V, h);

	for (uint32_t d = 0; d < dim; d += PFX_TILE) {
		uint32_t n = dim - d < PFX_TILE ? dim - d : PFX_TILE, most = variant->narrow(k + d, n, half);
		amax = most > amax ? most : amax;
		for (uint32_t i = 0; i < n; i++) {
			kb[(size_t)(d + i) * b + at] = half[i];
		}
	}
	ke[at] = pfx_exponent(amax);
	ve[at] = pfx_exponent(variant->narrow(v, dim, vb + (size_t)at * dim));
}

static void write_int8(const struct rope_job *job, uint32_t block, uint32_t h, uint32_t at,
	const float *k, const float *v)
{
	const struct pfx_variant *variant = job->dev->variant;
	uint32_t dim = job->kv->shape.head_dim, b = job->kv->shape.block_tokens;
	int8_t *kb = pfx_kv_plane(job->kv, block, job->layer, PFX_KV_K, h), bytes[PFX_HEAD_DIM_MAX];
	int8_t *vb = pfx_kv_plane(job->kv, block, job->layer, PFX_KV_V, h);
	uint16_t *ks = pfx_kv_marks(job->kv, block, job->layer, PFX_KV_K, h);
	uint16_t *vs = pfx_kv_marks(job->kv, block, job->layer, PFX_KV_V, h);

	ks[at] = variant->narrow8(k, dim, bytes);
	for (uint32_t d = 0; d < dim; d += 2) {
		memcpy(kb + ((size_t)d / 2 * b + at) * 2, bytes + d, 2);
	}
	vs[at] = variant->narrow8(v, dim, bytes);
	for (uint32_t d = 0; d < dim; d++) {
		vb[((size_t)at / 2 * dim + d) * 2 + at % 2] = bytes[d];
	}
}

static void write_kv(const struct rope_job *job, uint32_t row, const float *k, const float *v)
{
	const struct pfx_kv_shape *shape = &job->kv->shape;
	const struct pfx_batch_seq *s = &job->dev->batch->seqs[job->dev->plan.seq[row]];
	uint32_t pos = job->dev->plan.pos[row], dim = shape->head_dim, at = pos % shape->block_tokens;

	if (pos < s->write_from) {
		return;
	}
	PFX_ASSERT(pos / shape->block_tokens < s->n_blocks);
	uint32_t block = s->blocks[pos / shape->block_tokens];
	for (uint32_t h = 0; h < shape->n_kv_heads; h++, k += dim, v += dim) {
		if (shape->type == PFX_KV_F16) {
			write_f16(job, block, h, at, k, v);
		} else {
			write_int8(job, block, h, at, k, v);
		}
	}
}

static void rope_rows(void *arg, uint32_t task, uint32_t thread)
{
	const struct rope_job *job = arg;
	const struct pfx_variant *variant = job->dev->variant;
	const struct pfx_rope *rope = &job->dev->rope;
	uint32_t n_kv = job->kv->shape.n_kv_heads, dim = job->kv->shape.head_dim;
	uint32_t end = (task + 1) * ROPE_ROWS;

	for (uint32_t row = task * ROPE_ROWS; row < end && row < job->dev->batch->n_rows; row++) {
		float *x = job->qkv + (size_t)row * job->width;
		for (uint32_t h = 0; h < job->n_heads + n_kv; h++) {
			const float *norm = h < job->n_heads ? job->q_norm : job->k_norm;
			if (norm != NULL) {
				variant->rmsnorm(x + h * dim, norm, job->eps, dim, x + h * dim);
			}
			variant->rope(rope->kind, rope->n_dims,
				job->dev->plan.cs + (size_t)row * rope->n_dims, x + h * dim);
		}
		write_kv(job, row, x + job->n_heads * dim, x + (job->n_heads + n_kv) * dim);
	}
}

int pfx_cpu_rope_kv(struct pfx_device *dev, struct pfx_kv *kv, uint32_t layer, uint32_t n_heads,
	const struct pfx_weight *q_norm, const struct pfx_weight *k_norm, float eps,
	struct pfx_mem *qkv)
{
	uint32_t dim = kv->shape.head_dim;
	struct rope_job job = { dev, kv, layer, n_heads, (n_heads + 2 * kv->shape.n_kv_heads) * dim,
		q_norm == NULL ? NULL : q_norm->base, k_norm == NULL ? NULL : k_norm->base, eps,
		qkv->data };

	PFX_ASSERT(dev->batch != NULL && layer < kv->shape.n_layers);
	PFX_ASSERT(dev->rope.n_dims <= dim);
	PFX_ASSERT((q_norm == NULL || q_norm->n == dim) && (k_norm == NULL || k_norm->n == dim));
	PFX_ASSERT((size_t)dev->batch->n_rows * job.width * sizeof(float) <= qkv->bytes);
	pfx_pool_run(dev->pool, rope_rows, &job, (dev->batch->n_rows + ROPE_ROWS - 1) / ROPE_ROWS);
	return 0;
}

struct attn_job {
	struct pfx_device *dev;
	const struct pfx_kv *kv;
	uint32_t layer, n_heads, group, width, dim, dim_pad;
	float q_scale;
	const float *qkv;
	float *y;
	uint32_t vectors_max; /* query vectors of a task */
};

/* A thread's memory. */
struct attn_scratch {
	float *q_scale, *p, *m, *l, *o, *run_m, *run_l, *run_o, *k_scale, *v_scale, *k_up, *v_up;
	int16_t *q;
	uint32_t *n_valid, *k_words, *v_words;
};

/* n elements of 4 bytes. */
static void *place(float *base, size_t *used, size_t n)
{
	void *at = base == NULL ? NULL : base + *used;

	*used += (n + 15) & ~(size_t)15;
	return at;
}

/* Lays the scratch out; returns its size in bytes. base may be NULL to learn just that. */
static size_t lay_scratch(const struct attn_job *job, float *base, struct attn_scratch *s)
{
	size_t n = job->vectors_max, pad = job->dim_pad, used = 0;

	s->k_words = place(base, &used, PFX_SEGMENT * pad / 2);
	s->v_words = place(base, &used, PFX_SEGMENT * pad / 2);
	s->k_scale = place(base, &used, PFX_SEGMENT);
	s->v_scale = place(base, &used, PFX_SEGMENT);
	s->k_up = place(base, &used, PFX_SEGMENT);
	s->v_up = place(base, &used, PFX_SEGMENT);
	s->p = place(base, &used, PFX_P_ROWS * PFX_P_STRIDE);
	s->q = place(base, &used, n * pad / 2);
	s->q_scale = place(base, &used, n);
	s->o = place(base, &used, n * pad);
	s->run_o = place(base, &used, n * pad);
	s->m = place(base, &used, n);
	s->l = place(base, &used, n);
	s->run_m = place(base, &used, n);
	s->run_l = place(base, &used, n);
	s->n_valid = place(base, &used, n);
	return used * sizeof(float);
}

static uint32_t row_of(const struct attn_job *job, const struct pfx_attn_unit *u, uint32_t i)
{
	return u->member == NOBODY ? u->row + i : job->dev->plan.members[u->member + i].row;
}

static void load_q(const struct attn_job *job, const struct pfx_attn_unit *u, uint32_t kv_head,
	const struct attn_scratch *s)
{
	for (uint32_t i = 0; i < u->n_rows * job->group; i++) {
		uint32_t row = row_of(job, u, i / job->group), head = kv_head * job->group + i % job->group;
		s->q_scale[i] = job->dev->variant->attn_query(
			job->qkv + (size_t)row * job->width + head * job->dim, job->dim, job->dim_pad,
			job->q_scale, s->q + (size_t)i * job->dim_pad);
	}
}

/*
 * One segment for those rows of the unit that see any of it; results go to m, l, o of
 * scratch. Returns the first such vector.
 */
static uint32_t do_segment(const struct attn_job *job, const struct pfx_attn_unit *u,
	uint32_t kv_head, uint32_t seg, const struct attn_scratch *s)
{
	const struct pfx_batch_seq *seq = &job->dev->batch->seqs[u->seq];
	uint32_t start = seg * PFX_SEGMENT, b = job->kv->shape.block_tokens, first = 0, n = 0;
	const void *kb[PFX_SEGMENT], *vb[PFX_SEGMENT], *ke[PFX_SEGMENT], *ve[PFX_SEGMENT];

	for (uint32_t i = 0; i < u->n_rows * job->group; i++) {
		uint32_t pos = job->dev->plan.pos[row_of(job, u, i / job->group)];
		if (pos < start) {
			first = i + 1;
			continue;
		}
		n = pos - start + 1 < PFX_SEGMENT ? pos - start + 1 : PFX_SEGMENT;
		s->n_valid[i] = n;
	}
	for (uint32_t i = 0, at = start / b; i * b < n; i++, at++) {
		PFX_ASSERT(at < seq->n_blocks);
		kb[i] = pfx_kv_plane(job->kv, seq->blocks[at], job->layer, PFX_KV_K, kv_head);
		vb[i] = pfx_kv_plane(job->kv, seq->blocks[at], job->layer, PFX_KV_V, kv_head);
		ke[i] = pfx_kv_marks(job->kv, seq->blocks[at], job->layer, PFX_KV_K, kv_head);
		ve[i] = pfx_kv_marks(job->kv, seq->blocks[at], job->layer, PFX_KV_V, kv_head);
	}
	struct pfx_attn a = {
		.head_dim = job->dim,
		.dim_pad = job->dim_pad,
		.n = u->n_rows * job->group - first,
		.q = s->q + (size_t)first * job->dim_pad,
		.q_scale = s->q_scale + first,
		.n_valid = s->n_valid + first,
		.block_tokens = job->kv->shape.block_tokens,
		.type = job->kv->shape.type,
		.kb = kb,
		.vb = vb,
		.ke = ke,
		.ve = ve,
		.m = s->m + first,
		.l = s->l + first,
		.o = s->o + (size_t)first * job->dim_pad,
		.k_words = s->k_words,
		.v_words = s->v_words,
		.k_scale = s->k_scale,
		.v_scale = s->v_scale,
		.k_up = s->k_up,
		.v_up = s->v_up,
		.p = s->p,
	};
	job->dev->variant->attn(&a);
	return first;
}

static void finish(const struct attn_job *job, uint32_t row, uint32_t head, float l, const float *o)
{
	float *y = job->y + ((size_t)row * job->n_heads + head) * job->dim, inv = 1 / l;

	for (uint32_t d = 0; d < job->dim; d++) {
		y[d] = o[d] * inv;
	}
}

/* Partial result of (vector i of the unit, KV head): m, l, then o. */
static float *partial(const struct attn_job *job, uint32_t part, uint32_t kv_head, uint32_t i)
{
	size_t at = ((size_t)part * job->kv->shape.n_kv_heads + kv_head) * job->group + i;

	return job->dev->partials + at * (job->dim_pad + PFX_TILE);
}

static void keep_partials(const struct attn_job *job, const struct pfx_attn_unit *u,
	uint32_t kv_head, uint32_t first, const struct attn_scratch *s)
{
	for (uint32_t i = first; i < u->n_rows * job->group; i++) {
		const struct pfx_attn_member *to_row = &job->dev->plan.members[u->member + i / job->group];
		float *to = partial(job, to_row->part, kv_head, i % job->group);
		to[0] = s->m[i];
		to[1] = s->l[i];
		memcpy(to + PFX_TILE, s->o + (size_t)i * job->dim_pad, job->dim_pad * sizeof(*to));
	}
}

static void attn_task(void *arg, uint32_t task, uint32_t thread)
{
	const struct attn_job *job = arg;
	struct pfx_device *dev = job->dev;
	uint32_t n_kv = job->kv->shape.n_kv_heads, kv_head = task % n_kv;
	const struct pfx_attn_unit *u = &dev->plan.units[task / n_kv];
	uint32_t n = u->n_rows * job->group, pad = job->dim_pad;
	struct attn_scratch s;

	lay_scratch(job, (float *)(dev->scratch + thread * dev->scratch_each), &s);
	load_q(job, u, kv_head, &s);
	for (uint32_t seg = u->seg0; seg < u->seg1; seg++) {
		uint32_t first = do_segment(job, u, kv_head, seg, &s);
		if (u->member != NOBODY) {
			keep_partials(job, u, kv_head, first, &s);
			continue;
		}
		for (uint32_t i = first; i < n; i++) {
			if (seg == 0) {
				s.run_m[i] = s.m[i];
				s.run_l[i] = s.l[i];
				memcpy(s.run_o + (size_t)i * pad, s.o + (size_t)i * pad, pad * sizeof(float));
			} else {
				dev->variant->attn_merge(pad, &s.run_m[i], &s.run_l[i],
					s.run_o + (size_t)i * pad, s.m[i], s.l[i], s.o + (size_t)i * pad);
			}
		}
	}
	for (uint32_t i = 0; i < n && u->member == NOBODY; i++) {
		finish(job, u->row + i / job->group, kv_head * job->group + i % job->group, s.run_l[i],
			s.run_o + (size_t)i * pad);
	}
}

static void merge_task(void *arg, uint32_t task, uint32_t thread)
{
	const struct attn_job *job = arg;
	struct pfx_device *dev = job->dev;
	uint32_t n_kv = job->kv->shape.n_kv_heads, kv_head = task % n_kv;
	const struct pfx_attn_unit *u = &dev->plan.merges[task / n_kv];

	for (uint32_t i = 0; i < u->n_rows * job->group; i++) {
		uint32_t row = i / job->group, h = i % job->group;
		float *run = partial(job, u->part + row, kv_head, h);
		for (uint32_t seg = 1; seg < n_segments(dev->plan.pos[u->row + row]); seg++) {
			const float *p = partial(job, u->part + seg * u->n_rows + row, kv_head, h);
			dev->variant->attn_merge(job->dim_pad, &run[0], &run[1], run + PFX_TILE, p[0], p[1],
				p + PFX_TILE);
		}
		finish(job, u->row + row, kv_head * job->group + h, run[1], run + PFX_TILE);
	}
}

static int grow_partials(const struct attn_job *job)
{
	struct pfx_device *dev = job->dev;
	size_t n = (size_t)dev->plan.n_parts * job->n_heads * (job->dim_pad + PFX_TILE);

	if (n > dev->partials_cap) {
		pfx_free(dev->partials);
		dev->partials = pfx_aligned_alloc(64, n * sizeof(float));
		dev->partials_cap = dev->partials == NULL ? 0 : n;
	}
	return n == 0 || dev->partials != NULL ? 0 : -ENOMEM;
}

int pfx_cpu_attention(struct pfx_device *dev, const struct pfx_kv *kv, uint32_t layer,
	uint32_t n_heads, float scale, const struct pfx_mem *qkv, struct pfx_mem *y)
{
	uint32_t n_kv = kv->shape.n_kv_heads, dim = kv->shape.head_dim;
	struct attn_job job = { .dev = dev, .kv = kv, .layer = layer, .n_heads = n_heads,
		.group = n_heads / n_kv, .width = (n_heads + 2 * n_kv) * dim, .dim = dim,
		.dim_pad = (dim + PFX_TILE - 1) / PFX_TILE * PFX_TILE,
		.q_scale = scale * 1.44269504f, .qkv = qkv->data, .y = y->data };
	struct attn_scratch s;
	int e;

	PFX_ASSERT(dev->batch != NULL && layer < kv->shape.n_layers && n_heads % n_kv == 0);
	PFX_ASSERT((size_t)dev->batch->n_rows * job.width * sizeof(float) <= qkv->bytes);
	PFX_ASSERT((size_t)dev->batch->n_rows * n_heads * dim * sizeof(float) <= y->bytes);
	job.vectors_max = TILE_ROWS * job.group;
	e = pfx_scratch(dev, lay_scratch(&job, NULL, &s));
	if (e == 0) {
		e = grow_partials(&job);
	}
	/* Once a batch: all layers have blocks of one size. */
	if (e == 0 && dev->plan.per_segment != PFX_SEGMENT / kv->shape.block_tokens) {
		PFX_ASSERT(dev->plan.per_segment == 0);
		e = plan_segments(&dev->plan, dev->batch, PFX_SEGMENT / kv->shape.block_tokens);
		dev->plan.per_segment = e == 0 ? PFX_SEGMENT / kv->shape.block_tokens : 0;
	}
	if (e != 0) {
		return e;
	}
	pfx_pool_run(dev->pool, attn_task, &job, dev->plan.n_units * n_kv);
	pfx_pool_run(dev->pool, merge_task, &job, dev->plan.n_merges * n_kv);
	return 0;
}

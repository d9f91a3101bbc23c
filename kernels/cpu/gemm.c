/* Cuts a product into tasks: runs of tiles of one part x runs of rows. */
#include "config.h"

#include <errno.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "kernels/cpu/cpu.h"
#include "kernels/dtype_group.h"

#define TASKS_A_THREAD 8u /* so that a thread that is held up costs little */
#define QUANT_ROWS 8u

struct job {
	struct pfx_device *dev;
	struct pfx_gemm g;
	void (*arrange)(int16_t *v, uint32_t k); /* split, bytes or NULL */
	uint32_t rows_each, n_row_runs, tiles_each;
};

static int grow_quant(struct pfx_device *dev, uint32_t n_rows, uint32_t k)
{
	size_t n = (size_t)n_rows * k, groups = n / PFX_GROUP;
	size_t v_bytes = (n * sizeof(int16_t) + 63) & ~(size_t)63;
	size_t bytes = v_bytes + 2 * groups * sizeof(float);

	if (bytes > dev->quant_cap) {
		pfx_free(dev->quant.v);
		dev->quant_cap = 0;
		dev->quant.v = pfx_aligned_alloc(64, (bytes + 63) & ~(size_t)63);
		if (dev->quant.v == NULL) {
			return -ENOMEM;
		}
		dev->quant_cap = bytes;
	}
	dev->quant.s = (float *)((uint8_t *)dev->quant.v + v_bytes);
	return 0;
}

static void quantise_rows(void *arg, uint32_t task, uint32_t thread)
{
	const struct job *job = arg;
	const struct pfx_gemm *g = &job->g;
	uint32_t groups = g->k / PFX_GROUP, end = (task + 1) * QUANT_ROWS;
	float top = job->dev->fast ? PFX_TOP_FAST : PFX_TOP_EXACT;

	for (uint32_t i = task * QUANT_ROWS; i < end && i < g->n_rows; i++) {
		int16_t *v = g->q.v + (size_t)i * g->k;

		job->dev->variant->quantise(g->x + (size_t)i * g->k, g->k, top, v,
			g->q.s + (size_t)i * groups * 2);
		if (job->arrange != NULL) {
			job->arrange(v, g->k);
		}
	}
}

static uint32_t runs_of(const struct job *job, const struct pfx_part *p)
{
	return (p->n_tiles + job->tiles_each - 1) / job->tiles_each;
}

static void run_task(void *arg, uint32_t task, uint32_t thread)
{
	const struct job *job = arg;
	const struct pfx_part *p = job->g.w->parts;
	uint32_t runs = 0, row0, n_rows, tile0, n_tiles;

	for (uint32_t i = 0; i < job->g.w->n_parts; i++) {
		runs += runs_of(job, &p[i]);
	}
	/* All tiles for a run of rows before the next one: the rows stay in the cache. */
	row0 = task / runs * job->rows_each;
	n_rows = job->g.n_rows - row0 < job->rows_each ? job->g.n_rows - row0 : job->rows_each;
	task %= runs;
	while (task >= runs_of(job, p)) {
		task -= runs_of(job, p);
		p++;
	}
	tile0 = task * job->tiles_each;
	n_tiles = p->n_tiles - tile0 < job->tiles_each ? p->n_tiles - tile0 : job->tiles_each;
	job->dev->variant->gemm(&job->g, p, tile0, n_tiles, row0, n_rows,
		job->dev->scratch + thread * job->dev->scratch_each);
}

/* Shapes of tasks never change a result: each output is computed by itself. */
static uint32_t cut(struct job *job)
{
	uint32_t n_tiles = 0, runs = 0, want = job->dev->n_threads * TASKS_A_THREAD;

	for (uint32_t i = 0; i < job->g.w->n_parts; i++) {
		n_tiles += job->g.w->parts[i].n_tiles;
	}
	job->n_row_runs = (job->g.n_rows + PFX_GEMM_ROWS - 1) / PFX_GEMM_ROWS;
	job->rows_each = (job->g.n_rows + job->n_row_runs - 1) / job->n_row_runs;
	job->rows_each = (job->rows_each + 11) / 12 * 12; /* whole register blocks */
	job->n_row_runs = (job->g.n_rows + job->rows_each - 1) / job->rows_each;
	want = (want + job->n_row_runs - 1) / job->n_row_runs;
	job->tiles_each = (n_tiles / want + 1) & ~1u;
	if (job->tiles_each == 0) {
		job->tiles_each = 2;
	}
	for (uint32_t i = 0; i < job->g.w->n_parts; i++) {
		runs += runs_of(job, &job->g.w->parts[i]);
	}
	return runs * job->n_row_runs;
}

int pfx_cpu_matmul(struct pfx_device *dev, const struct pfx_weight *w, const struct pfx_mem *x,
	uint32_t row0, uint32_t n_rows, const struct pfx_weight *bias, int add, struct pfx_mem *y)
{
	const struct pfx_variant *variant = dev->variant;
	struct job job = { .dev = dev };
	int integers = 0, split = !dev->fast && variant->split_rows > 0 && n_rows >= variant->split_rows;
	int bytes = dev->fast && variant->bytes_rows > 0 && n_rows >= variant->bytes_rows, e;

	PFX_ASSERT(w->n_parts != 0);
	PFX_ASSERT(((size_t)row0 + n_rows) * w->k * sizeof(float) <= x->bytes);
	PFX_ASSERT((size_t)n_rows * w->n * sizeof(float) <= y->bytes);
	PFX_ASSERT(bias == NULL || (bias->n_parts == 0 && bias->n == w->n));
	if (n_rows == 0) {
		return 0;
	}
	for (uint32_t i = 0; i < w->n_parts; i++) {
		integers |= w->parts[i].n_groups != 0;
		split &= w->parts[i].n_scales < 2;
	}
	e = pfx_scratch(dev, PFX_GEMM_SCRATCH);
	if (e == 0 && integers) {
		e = grow_quant(dev, n_rows, w->k);
	}
	if (e != 0) {
		return e;
	}
	job.g = (struct pfx_gemm){
		.w = w,
		.n_rows = n_rows,
		.k = w->k,
		.n = w->n,
		.x = x->data + (size_t)row0 * w->k,
		.q = dev->quant,
		.split = split,
		.bytes = bytes,
		.bias = bias == NULL ? NULL : bias->base,
		.add = add,
		.y = y->data,
	};
	job.arrange = split ? variant->split : bytes ? variant->bytes : NULL;
	if (integers) {
		pfx_pool_run(dev->pool, quantise_rows, &job, (n_rows + QUANT_ROWS - 1) / QUANT_ROWS);
	}
	pfx_pool_run(dev->pool, run_task, &job, cut(&job));
	return 0;
}

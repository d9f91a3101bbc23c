/* The table of the CPU backend: the device, its memory, and the small operations. */
#include "config.h"

#include "kernels/ops.h"

#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/error.h"
#include "base/log.h"
#include "kernels/cpu/cpu.h"

#define ARITHMETIC 2u /* raise with any change of any bit of any result */
#define ROWS 8u       /* of a task of the operations below */

/* Fastest first; the last one runs anywhere. */
static const struct pfx_variant *const variants[] = {
#if defined(__x86_64__)
#if defined(HAVE_AMX)
	&pfx_variant_amx,
#endif
	&pfx_variant_avx512,
	&pfx_variant_avx2,
#endif
	&pfx_variant_reference,
};
#define N_VARIANTS (sizeof(variants) / sizeof(variants[0]))

static const struct pfx_variant *pick_variant(const char *name, char *err, size_t errlen)
{
	int any = name == NULL || strcmp(name, "auto") == 0;

	for (size_t i = 0; i < N_VARIANTS; i++) {
		if (!any && strcmp(name, variants[i]->name) != 0) {
			continue;
		}
		if (variants[i]->usable()) {
			return variants[i];
		}
		if (!any) {
			pfx_fail(PFX_E_UNSUPPORTED, err, errlen,
				"kernels \"%s\": this CPU cannot run them; use \"auto\"", name);
			return NULL;
		}
	}
	pfx_fail(PFX_E_UNSUPPORTED, err, errlen,
		"kernels \"%s\": unknown or not built in; one of \"auto\", \"amx\", \"avx512\", \"avx2\", "
		"\"reference\"", name);
	return NULL;
}

static void cpu_close(struct pfx_device *dev)
{
	if (dev == NULL) {
		return;
	}
	pfx_pool_close(dev->pool);
	pfx_plan_free(&dev->plan);
	pfx_free(dev->quant.v);
	pfx_free(dev->scratch);
	pfx_free(dev->partials);
	pfx_free(dev);
}

static int cpu_open(struct pfx_device **out, const struct pfx_device_opts *opts, char *err,
	size_t errlen)
{
	const struct pfx_variant *variant = pick_variant(opts->kernels, err, errlen);
	const char *activations = opts->activations == NULL ? "exact" : opts->activations;
	struct pfx_device *dev;

	if (variant == NULL) {
		return PFX_E_UNSUPPORTED;
	}
	if (strcmp(activations, "exact") != 0 && strcmp(activations, "fast") != 0) {
		return pfx_fail(PFX_E_UNSUPPORTED, err, errlen,
			"activations \"%s\": unknown; one of \"exact\", \"fast\"", activations);
	}
	dev = pfx_calloc(1, sizeof(*dev));
	if (dev == NULL) {
		return pfx_fail(-ENOMEM, err, errlen, "cpu: no memory for the device");
	}
	int e = pfx_pool_open(&dev->pool, opts->n_threads, opts->pin_threads);
	if (e != 0) {
		pfx_free(dev);
		return pfx_fail(e, err, errlen, "cpu: cannot start threads: %s", pfx_strerror(e));
	}
	dev->variant = variant;
	dev->fast = strcmp(activations, "fast") == 0;
	dev->n_threads = pfx_pool_threads(dev->pool);
	pfx_debug("kernels", "cpu backend kernels=%s threads=%u", variant->name, dev->n_threads);
	*out = dev;
	return 0;
}

static void cpu_info(const struct pfx_device *dev, struct pfx_device_info *out)
{
	*out = (struct pfx_device_info){
		.backend = "cpu",
		.kernels = dev->variant->name,
		.activations = dev->fast ? "int8" : "int16",
		.arithmetic = ARITHMETIC,
		.n_threads = dev->n_threads,
	};
}

int pfx_scratch(struct pfx_device *dev, size_t bytes_each)
{
	bytes_each = (bytes_each + 4095) & ~(size_t)4095;
	if (bytes_each <= dev->scratch_each) {
		return 0;
	}
	pfx_free(dev->scratch);
	dev->scratch_each = 0;
	dev->scratch = pfx_aligned_alloc(4096, bytes_each * dev->n_threads);
	if (dev->scratch == NULL) {
		return -ENOMEM;
	}
	/* Kernels may load (never use) more than was written. */
	memset(dev->scratch, 0, bytes_each * dev->n_threads);
	dev->scratch_each = bytes_each;
	return 0;
}

static size_t weight_bytes(const struct pfx_weight *w)
{
	return w->bytes;
}

static int mem_alloc(struct pfx_device *dev, size_t bytes, struct pfx_mem **out)
{
	struct pfx_mem *mem = pfx_calloc(1, sizeof(*mem));

	if (mem == NULL || bytes > SIZE_MAX - 64) {
		pfx_free(mem);
		return -ENOMEM;
	}
	mem->bytes = bytes;
	mem->data = pfx_aligned_alloc(64, (bytes + 63) & ~(size_t)63);
	if (mem->data == NULL) {
		pfx_free(mem);
		return -ENOMEM;
	}
	*out = mem;
	return 0;
}

static void mem_free(struct pfx_device *dev, struct pfx_mem *mem)
{
	if (mem != NULL) {
		pfx_free(mem->data);
		pfx_free(mem);
	}
}

static int mem_write(struct pfx_device *dev, struct pfx_mem *mem, size_t at, const void *src,
	size_t bytes)
{
	PFX_ASSERT(at <= mem->bytes && bytes <= mem->bytes - at);
	memcpy((uint8_t *)mem->data + at, src, bytes);
	return 0;
}

static int mem_read(struct pfx_device *dev, const struct pfx_mem *mem, size_t at, void *dst,
	size_t bytes)
{
	PFX_ASSERT(at <= mem->bytes && bytes <= mem->bytes - at);
	memcpy(dst, (const uint8_t *)mem->data + at, bytes);
	return 0;
}

static int begin(struct pfx_device *dev, const struct pfx_batch *batch, const struct pfx_rope *rope)
{
	PFX_ASSERT(batch->n_rows != 0 && batch->n_seqs != 0);
	dev->rope = rope == NULL ? (struct pfx_rope){ 0 } : *rope;
	PFX_ASSERT(dev->rope.n_dims % 2 == 0);
	dev->batch = batch;
	int e = pfx_plan_batch(dev, batch);
	if (e != 0) {
		dev->batch = NULL;
	}
	return e;
}

static int sync(struct pfx_device *dev)
{
	dev->batch = NULL;
	return 0;
}

static void enter(struct pfx_device *dev)
{
	pfx_pool_enter(dev->pool);
}

static uint64_t waited(struct pfx_device *dev)
{
	return pfx_pool_waited(dev->pool);
}

/* The row operations below: what each task needs, whichever it is. */
struct row_job {
	struct pfx_device *dev;
	const struct pfx_weight *w;
	const float *x;
	float *y, scale;
	uint32_t n_rows, dim;
	int gather;
	enum pfx_act act;
};

static void run_rows(struct row_job *job, pfx_task_fn fn)
{
	pfx_pool_run(job->dev->pool, fn, job, (job->n_rows + ROWS - 1) / ROWS);
}

static uint32_t rows_end(const struct row_job *job, uint32_t task)
{
	uint32_t end = (task + 1) * ROWS;

	return end < job->n_rows ? end : job->n_rows;
}

static void embed_rows(void *arg, uint32_t task, uint32_t thread)
{
	const struct row_job *job = arg;

	for (uint32_t i = task * ROWS; i < rows_end(job, task); i++) {
		float *y = job->y + (size_t)i * job->dim;
		PFX_ASSERT(job->dev->batch->tokens[i] < job->w->n);
		pfx_unpack_row(job->w, job->dev->batch->tokens[i], y);
		for (uint32_t k = 0; job->scale != 1 && k < job->dim; k++) {
			y[k] *= job->scale;
		}
	}
}

static int embed(struct pfx_device *dev, const struct pfx_weight *w, float scale, struct pfx_mem *y)
{
	struct row_job job = { .dev = dev, .w = w, .y = y->data, .scale = scale, .dim = w->k };

	PFX_ASSERT(dev->batch != NULL && w->n_parts != 0);
	job.n_rows = dev->batch->n_rows;
	PFX_ASSERT((size_t)job.n_rows * w->k * sizeof(float) <= y->bytes);
	run_rows(&job, embed_rows);
	return 0;
}

static void norm_rows(void *arg, uint32_t task, uint32_t thread)
{
	const struct row_job *job = arg;

	for (uint32_t i = task * ROWS; i < rows_end(job, task); i++) {
		uint32_t from = job->gather ? job->dev->batch->out_rows[i] : i;
		PFX_ASSERT(from < job->dev->batch->n_rows);
		job->dev->variant->rmsnorm(job->x + (size_t)from * job->dim, job->w->base, job->scale,
			job->dim, job->y + (size_t)i * job->dim);
	}
}

static int rmsnorm(struct pfx_device *dev, const struct pfx_mem *x, const struct pfx_weight *w,
	float eps, uint32_t dim, int gather, struct pfx_mem *y)
{
	struct row_job job = { .dev = dev, .w = w, .x = x->data, .y = y->data, .scale = eps,
		.dim = dim, .gather = gather };

	PFX_ASSERT(dev->batch != NULL && w->n_parts == 0 && w->n == dim);
	PFX_ASSERT(!gather || x != y);
	job.n_rows = gather ? dev->batch->n_out : dev->batch->n_rows;
	PFX_ASSERT((size_t)dev->batch->n_rows * dim * sizeof(float) <= x->bytes);
	PFX_ASSERT((size_t)job.n_rows * dim * sizeof(float) <= y->bytes);
	run_rows(&job, norm_rows);
	return 0;
}

static void gated_rows(void *arg, uint32_t task, uint32_t thread)
{
	const struct row_job *job = arg;

	for (uint32_t i = task * ROWS; i < rows_end(job, task); i++) {
		const float *gate = job->x + (size_t)i * 2 * job->dim;
		job->dev->variant->gated(job->act, gate, gate + job->dim, job->dim,
			job->y + (size_t)i * job->dim);
	}
}

static int gated(struct pfx_device *dev, enum pfx_act act, const struct pfx_mem *gu, uint32_t n,
	struct pfx_mem *y)
{
	struct row_job job = { .dev = dev, .x = gu->data, .y = y->data, .dim = n, .act = act };

	PFX_ASSERT(dev->batch != NULL && gu != y);
	job.n_rows = dev->batch->n_rows;
	PFX_ASSERT((size_t)job.n_rows * 2 * n * sizeof(float) <= gu->bytes);
	PFX_ASSERT((size_t)job.n_rows * n * sizeof(float) <= y->bytes);
	run_rows(&job, gated_rows);
	return 0;
}

const struct pfx_ops pfx_cpu_ops = {
	.name = "cpu",
	.open = cpu_open,
	.close = cpu_close,
	.info = cpu_info,
	.enter = enter,
	.weight_pack = pfx_cpu_weight_pack,
	.vector_pack = pfx_cpu_vector_pack,
	.weight_free = pfx_cpu_weight_free,
	.weight_bytes = weight_bytes,
	.mem_alloc = mem_alloc,
	.mem_free = mem_free,
	.mem_write = mem_write,
	.mem_read = mem_read,
	.kv_block_bytes = pfx_cpu_kv_block_bytes,
	.kv_open = pfx_cpu_kv_open,
	.kv_close = pfx_cpu_kv_close,
	.kv_copy = pfx_cpu_kv_copy,
	.kv_read = pfx_cpu_kv_read,
	.kv_trim = pfx_cpu_kv_trim,
	.kv_write = pfx_cpu_kv_write,
	.begin = begin,
	.sync = sync,
	.waited = waited,
	.embed = embed,
	.rmsnorm = rmsnorm,
	.matmul = pfx_cpu_matmul,
	.rope_kv = pfx_cpu_rope_kv,
	.attention = pfx_cpu_attention,
	.gated = gated,
};

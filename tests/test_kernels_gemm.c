/*
 * kernels/: products and the embedding. The reference against double precision over the
 * widened weights; every other variant and thread count against the reference, bit by bit;
 * a row alone against the same row among others, bit by bit.
 */
#include <math.h>

#include "tests/kernels_util.h"

struct problem {
	uint32_t m, k, n, n_parts;
	struct pfx_weight_part parts[4];
	uint8_t *data[4];
	float *x, *bias, *y0; /* y0: what y holds before, for add */
	int has_bias, add;
};

static void make_problem(struct problem *p, struct pfx_rng *rng, uint32_t m, uint32_t k,
	uint32_t n_parts, const enum pfx_dtype *types, const uint32_t *n)
{
	*p = (struct problem){ .m = m, .k = k, .n_parts = n_parts };
	for (uint32_t i = 0; i < n_parts; i++) {
		p->data[i] = random_weights(rng, types[i], n[i], k);
		p->parts[i] = (struct pfx_weight_part){ types[i], n[i], p->data[i] };
		p->n += n[i];
	}
	p->x = random_floats(rng, (size_t)m * k, 1);
	/* One loud column and one silent group, as real activations have. */
	for (uint32_t i = 0; i < m; i++) {
		p->x[(size_t)i * k + k / 2] *= 300;
		for (uint32_t j = 0; j < 32 && j < k && i % 3 == 1; j++) {
			p->x[(size_t)i * k + j] = 0;
		}
	}
	p->bias = random_floats(rng, p->n, 1);
	p->y0 = random_floats(rng, (size_t)m * p->n, 1);
	p->has_bias = (int)pfx_rng_below(rng, 2);
	p->add = (int)pfx_rng_below(rng, 2);
}

static void free_problem(struct problem *p)
{
	for (uint32_t i = 0; i < p->n_parts; i++) {
		pfx_free(p->data[i]);
	}
	pfx_free(p->x);
	pfx_free(p->bias);
	pfx_free(p->y0);
}

/* Rows [row0, row0 + m) of the problem on a device; the caller frees the result. */
static int fast; /* which activations the devices have */

static float *multiply(const struct problem *p, struct pfx_device *dev, uint32_t row0, uint32_t m)
{
	struct pfx_weight *w, *bias;
	struct pfx_mem *x = mem_of(dev, p->x, (size_t)p->m * p->k * 4);
	struct pfx_mem *y = mem_of(dev, p->y0 + (size_t)row0 * p->n, (size_t)m * p->n * 4);
	float *out = pfx_xmalloc((size_t)m * p->n * 4);

	if (ops->weight_pack(dev, p->parts, p->n_parts, p->k, &w) != 0 ||
		ops->vector_pack(dev, PFX_F32, p->bias, p->n, &bias) != 0 ||
		ops->matmul(dev, w, x, row0, m, p->has_bias ? bias : NULL, p->add, y) != 0) {
		abort();
	}
	ops->mem_read(dev, y, 0, out, (size_t)m * p->n * 4);
	ops->weight_free(dev, w);
	ops->weight_free(dev, bias);
	ops->mem_free(dev, x);
	ops->mem_free(dev, y);
	return out;
}

/*
 * Error of one output against double precision, in units of what the arithmetic allows: half
 * a step of the group's activations times its weights (integer weights only; a step is 1/32767 of
 * the largest, or 1/127 if they are fast), and a few float32 roundings of sums as large as the group
 * can make them.
 */
static double error_of(const struct problem *p, const float *w, const float *x, int integers,
	double start, float y)
{
	double want = start, allowed = 1e-6 * (fabs(start) + 1e-3);

	for (uint32_t g = 0; g < p->k; g += 32) {
		double amax = 0, wmax = 0, wsum = 0;
		for (uint32_t k = g; k < g + 32 && k < p->k; k++) {
			want += (double)w[k] * x[k];
			amax = fmax(amax, fabsf(x[k]));
			wmax = fmax(wmax, fabsf(w[k]));
			wsum += fabsf(w[k]);
		}
		allowed += amax * (1e-5 * wmax + (integers ? wsum / (fast ? 254 : 65534) : 0));
	}
	return fabs(y - want) / allowed;
}

/* The worst of them; NaN when there is one. */
static double worst_error(const struct problem *p, const float *y)
{
	float *w = pfx_xmalloc(p->k * sizeof(*w));
	double worst = 0;
	uint32_t n0 = 0;

	for (uint32_t i = 0; i < p->n_parts; n0 += p->parts[i].n, i++) {
		enum pfx_dtype type = p->parts[i].type;
		for (uint32_t n = 0; n < p->parts[i].n; n++) {
			pfx_dtype_widen(type, p->data[i] + n * pfx_dtype_row_bytes(type, p->k), p->k, w);
			for (uint32_t m = 0; m < p->m; m++) {
				size_t at = (size_t)m * p->n + n0 + n;
				double start = (p->has_bias ? p->bias[n0 + n] : 0) + (p->add ? p->y0[at] : 0);
				double e = error_of(p, w, p->x + (size_t)m * p->k,
					pfx_dtype_info(type)->block_elems > 1, start, y[at]);
				worst = e > worst || isnan(e) ? e : worst;
			}
		}
	}
	pfx_free(w);
	return worst;
}

static void check_problem(const struct problem *p, const char *what)
{
	float *want = multiply(p, devices[0], 0, p->m);
	double e = worst_error(p, want);

	ok(e < 1, "%s m=%u k=%u n=%u: reference at %.2f of the allowed error", what, p->m, p->k, p->n, e);
	for (int i = 1; i < n_devices; i++) {
		float *got = multiply(p, devices[i], 0, p->m);
		ok(memcmp(got, want, (size_t)p->m * p->n * 4) == 0, "%s m=%u k=%u n=%u: %s has its bits",
			what, p->m, p->k, p->n, device_names[i]);
		pfx_free(got);
	}
	pfx_free(want);
}

/* Any run of rows gives the bits that it has among all. */
static void check_rows(const struct problem *p, struct pfx_rng *rng)
{
	static const uint32_t sizes[] = { 1, 2, 3, 4, 5, 6, 7, 8, 12, 13, 17, 64, 241, 257 };
	int bad = 0;

	for (int i = 0; i < n_devices; i += 3) {
		if (i == 0 && p->m > 20) {
			continue; /* the reference walks rows one by one anyway */
		}
		float *all = multiply(p, devices[i], 0, p->m);
		for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]) && sizes[s] <= p->m; s++) {
			uint32_t row0 = (uint32_t)pfx_rng_below(rng, p->m - sizes[s] + 1);
			float *got = multiply(p, devices[i], row0, sizes[s]);
			bad += memcmp(got, all + (size_t)row0 * p->n, (size_t)sizes[s] * p->n * 4) != 0;
			pfx_free(got);
		}
		pfx_free(all);
	}
	is_int(bad, 0, "m=%u k=%u n=%u: rows do not know of each other", p->m, p->k, p->n);
}

static void check_embed(const struct problem *p, struct pfx_rng *rng)
{
	uint32_t tokens[20], bad = 0;
	struct pfx_batch_seq seq = { .n_rows = 20 };
	struct pfx_batch batch = { .n_rows = 20, .n_seqs = 1, .tokens = tokens, .seqs = &seq };
	float *got = pfx_xmalloc((size_t)20 * p->k * 4), *want = pfx_xmalloc((size_t)p->k * 4);
	struct pfx_weight *w;
	struct pfx_mem *y = mem_of(devices[0], NULL, (size_t)20 * p->k * 4);

	for (int i = 0; i < 20; i++) {
		tokens[i] = (uint32_t)pfx_rng_below(rng, p->n);
	}
	if (ops->weight_pack(devices[0], p->parts, p->n_parts, p->k, &w) != 0 ||
		ops->begin(devices[0], &batch, NULL) != 0 || ops->embed(devices[0], w, 1, y) != 0) {
		abort();
	}
	ops->mem_read(devices[0], y, 0, got, (size_t)20 * p->k * 4);
	for (int i = 0; i < 20; i++) {
		uint32_t n = tokens[i], part = 0;
		while (n >= p->parts[part].n) {
			n -= p->parts[part++].n;
		}
		pfx_dtype_widen(p->parts[part].type,
			p->data[part] + n * pfx_dtype_row_bytes(p->parts[part].type, p->k), p->k, want);
		bad += memcmp(got + (size_t)i * p->k, want, p->k * 4) != 0;
	}
	is_int(bad, 0, "embed gives the widened bits");
	ops->sync(devices[0]);
	ops->mem_free(devices[0], y);
	ops->weight_free(devices[0], w);
	pfx_free(got);
	pfx_free(want);
}

static void test_types(struct pfx_rng *rng)
{
	struct problem p;

	for (size_t t = 0; t < N_TYPES; t++) {
		uint32_t block = pfx_dtype_info(all_types[t])->block_elems;
		const char *name = pfx_dtype_info(all_types[t])->name;
		uint32_t unit = block == 1 ? 1 : block;
		for (int round = 0; round < 3; round++) {
			uint32_t k = (1 + (uint32_t)pfx_rng_below(rng, block == 1 ? 500 : 800 / block)) * unit;
			uint32_t n = 1 + (uint32_t)pfx_rng_below(rng, 100);
			uint32_t m = round == 0 ? 1 : round == 1 ? 2 + (uint32_t)pfx_rng_below(rng, 14) :
				16 + (uint32_t)pfx_rng_below(rng, 40);
			make_problem(&p, rng, m, k, 1, &all_types[t], &n);
			check_problem(&p, name);
			check_rows(&p, rng);
			if (round == 0) {
				check_embed(&p, rng);
			}
			free_problem(&p);
		}
	}
}

static void test_shapes(struct pfx_rng *rng)
{
	/* q, k, v of different types; more rows than a task takes; k over several blocks. */
	static const enum pfx_dtype qkv[] = { PFX_Q4_1, PFX_Q8_0, PFX_F16 }, mix[] = { PFX_Q6_K,
		PFX_Q4_K, PFX_F32, PFX_Q5_0 };
	static const uint32_t qkv_n[] = { 64, 17, 33 }, mix_n[] = { 5, 48, 1, 16 };
	struct problem p;

	make_problem(&p, rng, 9, 576, 3, qkv, qkv_n);
	check_problem(&p, "three parts");
	check_rows(&p, rng);
	check_embed(&p, rng);
	free_problem(&p);
	make_problem(&p, rng, 13, 512, 4, mix, mix_n);
	check_problem(&p, "four parts");
	free_problem(&p);
	for (size_t t = 0; t < N_TYPES; t++) {
		uint32_t n = 40;
		make_problem(&p, rng, 263, t < 3 ? 520 : 1536, 1, &all_types[t], &n);
		check_rows(&p, rng);
		free_problem(&p);
	}
}

/* What a product makes of an activation that is no number must not spread to other rows. */
static void test_not_finite(struct pfx_rng *rng)
{
	enum pfx_dtype type = PFX_Q4_1;
	uint32_t n = 32, bad = 0;
	struct problem p;

	make_problem(&p, rng, 7, 64, 1, &type, &n);
	p.add = 0;
	for (int i = 0; i < n_devices; i++) {
		float *before = multiply(&p, devices[i], 0, p.m), keep = p.x[3 * 64 + 5];
		p.x[3 * 64 + 5] = i % 2 ? NAN : -INFINITY;
		float *y = multiply(&p, devices[i], 0, p.m);
		for (uint32_t j = 0; j < p.m * n; j++) {
			bad += j / n == 3 ? !isnan(y[j]) : memcmp(&y[j], &before[j], 4) != 0;
		}
		p.x[3 * 64 + 5] = keep;
		pfx_free(y);
		pfx_free(before);
	}
	is_int(bad, 0, "an infinity or NaN makes its own row NaN and no other");
	free_problem(&p);
}

static void test_refusals(void)
{
	static const uint8_t raw[256];
	struct pfx_weight_part part = { PFX_Q4_0, 1, raw };
	struct pfx_weight *w = NULL;

	ok(ops->weight_pack(devices[0], &part, 1, 33, &w) < 0, "k of half a block is refused");
	part.n = 0;
	ok(ops->weight_pack(devices[0], &part, 1, 32, &w) < 0, "an empty part is refused");
	part = (struct pfx_weight_part){ (enum pfx_dtype)77, 1, raw };
	ok(ops->weight_pack(devices[0], &part, 1, 32, &w) < 0, "an unknown type is refused");
	ok(w == NULL, "and nothing is made");
}

static void test_activations(void)
{
	static const char *const names[] = { NULL, "exact", "fast" }, *const want[] = { "int16", "int16",
		"int8" };
	struct pfx_device_opts o = { .n_threads = 1 };
	struct pfx_device_info info;
	struct pfx_device *dev = NULL;
	char err[200] = "";

	for (int i = 0; i < 3; i++) {
		o.activations = names[i];
		if (ops->open(&dev, &o, err, sizeof(err)) != 0) {
			abort();
		}
		ops->info(dev, &info);
		ok(strcmp(info.activations, want[i]) == 0, "activations %s",
			names[i] == NULL ? "(none)" : names[i]);
		ops->close(dev);
	}
	o.activations = "int8";
	ok(ops->open(&dev, &o, err, sizeof(err)) < 0 && strstr(err, "\"int8\"") != NULL,
		"another name is refused: %s", err);
}

int main(void)
{
	struct pfx_rng rng = { pfx_rng_entropy() };

	printf("# seed %llu\n", (unsigned long long)rng.state);
	for (fast = 0; fast < 2; fast++) {
		open_devices_of(fast ? "fast" : "exact");
		printf("# activations %s\n", fast ? "fast" : "exact");
		test_types(&rng);
		test_shapes(&rng);
		test_not_finite(&rng);
		test_refusals();
		close_devices();
	}
	test_activations();
	return tap_done();
}

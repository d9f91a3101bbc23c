#include "engine/rope.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"

#define TWO_PI 6.283185307179586

enum scaling { SCALING_NONE, SCALING_LINEAR, SCALING_YARN };

/* A file's RoPE keys, defaults as the format's description has them. */
struct params {
	enum scaling scaling;
	uint32_t n_dims, n_ctx_orig;
	float base, factor;
	float attn_factor, ext_factor, beta_fast, beta_slow;
};

static int read_scaling(const struct pfx_gguf *g, const char *arch, struct params *p, char *err,
	size_t errlen)
{
	static const char *const names[] = { "none", "linear", "yarn" };
	struct pfx_str s;
	char key[64];
	int rc;

	snprintf(key, sizeof(key), "%s.rope.scaling.type", arch);
	rc = pfx_gguf_str(g, key, &s, NULL, 0);
	if (rc == -ENOENT) {
		/* Without a type, a factor alone means linear; so does the older key. */
		p->factor = 0.0f;
		rc = pfx_arch_f32(g, arch, "rope.scale_linear", &p->factor, err, errlen);
		if (rc == 0) {
			rc = pfx_arch_f32(g, arch, "rope.scaling.factor", &p->factor, err, errlen);
		}
		p->scaling = p->factor != 0.0f ? SCALING_LINEAR : SCALING_NONE;
		return rc;
	}
	if (rc != 0) {
		return pfx_gguf_str(g, key, &s, err, errlen);
	}
	for (int i = 0; i < 3; i++) {
		if (s.n == strlen(names[i]) && memcmp(s.s, names[i], s.n) == 0) {
			p->scaling = (enum scaling)i;
			return pfx_arch_f32(
				g, arch, "rope.scaling.factor", &p->factor, err, errlen);
		}
	}
	return pfx_fail(PFX_E_UNSUPPORTED, err, errlen,
		"%s: key '%s' is '%.*s', expected none, linear or yarn", pfx_gguf_path(g), key,
		(int)(s.n < 40 ? s.n : 40), s.s);
}

static int check_params(const struct pfx_gguf *g, const char *arch,
	const struct pfx_model_config *c, const struct params *p, char *err, size_t errlen)
{
	const char *path = pfx_gguf_path(g);

	if (p->n_dims < 2 || p->n_dims % 2 != 0 || p->n_dims > c->head_dim) {
		return pfx_fail(PFX_E_FORMAT, err, errlen,
			"%s: key '%s.rope.dimension_count' is %u, expected an even number from 2 "
			"to the head's %u dimensions",
			path, arch, p->n_dims, c->head_dim);
	}
	if (!(p->base > 1.0f && isfinite(p->base))) {
		return pfx_fail(PFX_E_FORMAT, err, errlen,
			"%s: key '%s.rope.freq_base' is %g, expected a number above 1", path, arch,
			(double)p->base);
	}
	if (p->scaling != SCALING_NONE && !(p->factor > 0.0f && isfinite(p->factor))) {
		return pfx_fail(PFX_E_FORMAT, err, errlen,
			"%s: key '%s.rope.scaling.factor' is missing or %g, expected a positive "
			"number",
			path, arch, (double)p->factor);
	}
	if (p->scaling == SCALING_YARN && !(isfinite(p->attn_factor) && isfinite(p->ext_factor) &&
		p->beta_fast > 0.0f && p->beta_slow > 0.0f && isfinite(p->beta_fast) &&
		isfinite(p->beta_slow))) {
		return pfx_fail(PFX_E_FORMAT, err, errlen,
			"%s: keys '%s.rope.scaling.*' of YaRN are out of range, expected finite "
			"factors and positive betas",
			path, arch);
	}
	return 0;
}

static int read_params(const struct pfx_gguf *g, const char *arch,
	const struct pfx_model_config *c, struct params *p, char *err, size_t errlen)
{
	/* Where a key has two spellings in the wild, the later one read wins. */
	const struct {
		const char *key;
		float *v;
	} floats[] = {
		{ "rope.freq_base", &p->base },
		{ "rope.scaling.attn_factor", &p->attn_factor },
		{ "rope.scaling.yarn_attn_factor", &p->attn_factor },
		{ "rope.scaling.yarn_ext_factor", &p->ext_factor },
		{ "rope.scaling.yarn_beta_fast", &p->beta_fast },
		{ "rope.scaling.yarn_beta_slow", &p->beta_slow },
	};
	int rc;

	*p = (struct params){ .n_dims = c->head_dim, .n_ctx_orig = c->n_ctx_train,
		.base = 10000.0f, .attn_factor = 1.0f, .ext_factor = 1.0f, .beta_fast = 32.0f,
		.beta_slow = 1.0f };
	for (size_t i = 0; i < sizeof(floats) / sizeof(floats[0]); i++) {
		rc = pfx_arch_f32(g, arch, floats[i].key, floats[i].v, err, errlen);
		if (rc != 0) {
			return rc;
		}
	}
	if ((rc = pfx_arch_u32(g, arch, "rope.dimension_count", &p->n_dims, err, errlen)) != 0 ||
		(rc = pfx_arch_u32(g, arch, "rope.scaling.original_context_length", &p->n_ctx_orig,
			err, errlen)) != 0 ||
		(rc = read_scaling(g, arch, p, err, errlen)) != 0) {
		return rc;
	}
	return check_params(g, arch, c, p, err, errlen);
}

/*
 * The dimension whose wave turns `turns` times over the original context.
 * Source: Peng et al., "YaRN: Efficient Context Window Extension", 2023, section 3.2.
 */
static double yarn_dim(const struct params *p, double turns)
{
	return p->n_dims * log(p->n_ctx_orig / (turns * TWO_PI)) / (2.0 * log((double)p->base));
}

/* 1 where a pair keeps its frequency (fast waves), 0 where it is interpolated. */
static double yarn_keep(const struct params *p, uint32_t pair)
{
	double low = floor(yarn_dim(p, (double)p->beta_fast));
	double high = ceil(yarn_dim(p, (double)p->beta_slow));

	low = low > 0.0 ? low : 0.0;
	high = high < p->n_dims - 1.0 ? high : p->n_dims - 1.0;
	double ramp = (pair - low) / (high - low > 0.001 ? high - low : 0.001);
	ramp = ramp < 0.0 ? 0.0 : ramp > 1.0 ? 1.0 : ramp;
	return (1.0 - ramp) * (double)p->ext_factor;
}

static double scaled_freq(const struct params *p, uint32_t pair, double factor)
{
	double freq = pow((double)p->base, -2.0 * pair / p->n_dims) / factor, keep;

	switch (p->scaling) {
	case SCALING_NONE:
		break;
	case SCALING_LINEAR:
		freq /= (double)p->factor;
		break;
	case SCALING_YARN:
		keep = yarn_keep(p, pair);
		freq = freq * keep + freq / (double)p->factor * (1.0 - keep);
		break;
	}
	return freq;
}

/* Llama-3's factors, one for each pair; NULL when the file has none. */
static int find_factors(const struct pfx_gguf *g, uint32_t n_pairs, float *factors, char *err,
	size_t errlen)
{
	const struct pfx_gguf_tensor *t = pfx_gguf_tensor(g, "rope_freqs.weight");

	for (uint32_t i = 0; i < n_pairs; i++) {
		factors[i] = 1.0f;
	}
	if (t == NULL) {
		return 0;
	}
	if (t->type != PFX_F32 || t->n_dims != 1 || t->dims[0] != n_pairs) {
		return pfx_fail(PFX_E_FORMAT, err, errlen,
			"%s: tensor 'rope_freqs.weight' has another type or shape, expected F32 "
			"[%u]",
			pfx_gguf_path(g), n_pairs);
	}
	memcpy(factors, t->data, n_pairs * sizeof(*factors));
	for (uint32_t i = 0; i < n_pairs; i++) {
		if (!(factors[i] > 0.0f && isfinite(factors[i]))) {
			return pfx_fail(PFX_E_FORMAT, err, errlen,
				"%s: tensor 'rope_freqs.weight' has %g at %u, expected a positive "
				"number",
				pfx_gguf_path(g), (double)factors[i], i);
		}
	}
	return 0;
}

int pfx_rope_open(struct pfx_rope_table *out, const struct pfx_gguf *g,
	const struct pfx_arch *arch, const struct pfx_model_config *config, char *err,
	size_t errlen)
{
	struct params p;
	int rc = read_params(g, arch->name, config, &p, err, errlen);

	memset(out, 0, sizeof(*out));
	if (rc != 0) {
		return rc;
	}
	out->inv_freq = pfx_calloc(p.n_dims / 2, sizeof(*out->inv_freq));
	if (out->inv_freq == NULL) {
		return pfx_fail(-ENOMEM, err, errlen, "%s: no memory", pfx_gguf_path(g));
	}
	/* The factors are read into the table, then replaced one by one. */
	rc = find_factors(g, p.n_dims / 2, out->inv_freq, err, errlen);
	if (rc != 0) {
		pfx_rope_close(out);
		return rc;
	}
	for (uint32_t i = 0; i < p.n_dims / 2; i++) {
		out->inv_freq[i] = (float)scaled_freq(&p, i, (double)out->inv_freq[i]);
	}
	out->rope = (struct pfx_rope){ arch->rope_kind, p.n_dims, out->inv_freq, 1.0f };
	if (p.scaling == SCALING_YARN) {
		out->rope.magnitude = p.attn_factor;
		if (p.factor > 1.0f) {
			out->rope.magnitude *= 0.1f * logf(p.factor) + 1.0f;
		}
	}
	return 0;
}

void pfx_rope_close(struct pfx_rope_table *t)
{
	pfx_free(t->inv_freq);
	memset(t, 0, sizeof(*t));
}

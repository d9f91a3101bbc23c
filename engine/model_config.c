#include "engine/model_config.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/log.h"

static const struct pfx_arch archs[] = {
	{ "llama", PFX_ROPE_PAIRS, -1, 0 },
	{ "qwen2", PFX_ROPE_HALVES, 1, 0 },
	{ "qwen3", PFX_ROPE_HALVES, 0, 1 },
};

/* Bounds on a shape: far above any model of these kinds, low enough that products of two
 * of them stay within 64 bits and activations within what can be asked of an allocator. */
#define LAYERS_MAX 1024u
#define WIDTH_MAX (1u << 18)
#define HEADS_MAX 1024u
#define HEAD_DIM_MAX 1024u
#define CONTEXT_MAX (1u << 30)

static const char *arch_key(char *buf, size_t n, const char *arch, const char *key)
{
	snprintf(buf, n, "%s.%s", arch, key);
	return buf;
}

int pfx_arch_u32(const struct pfx_gguf *g, const char *arch, const char *key, uint32_t *v,
	char *err, size_t errlen)
{
	char name[128];
	int rc = pfx_gguf_u32(g, arch_key(name, sizeof(name), arch, key), v, NULL, 0);

	return rc == 0 || rc == -ENOENT ? 0 : pfx_gguf_u32(g, name, v, err, errlen);
}

int pfx_arch_f32(const struct pfx_gguf *g, const char *arch, const char *key, float *v, char *err,
	size_t errlen)
{
	char name[128];
	int rc = pfx_gguf_f32(g, arch_key(name, sizeof(name), arch, key), v, NULL, 0);

	return rc == 0 || rc == -ENOENT ? 0 : pfx_gguf_f32(g, name, v, err, errlen);
}

static int find_arch(const struct pfx_gguf *g, const struct pfx_arch **out, char *err,
	size_t errlen)
{
	struct pfx_str s;
	int rc = pfx_gguf_str(g, "general.architecture", &s, err, errlen);

	if (rc != 0) {
		return rc == -ENOENT ? PFX_E_FORMAT : rc;
	}
	for (size_t i = 0; i < sizeof(archs) / sizeof(archs[0]); i++) {
		if (s.n == strlen(archs[i].name) && memcmp(s.s, archs[i].name, s.n) == 0) {
			*out = &archs[i];
			return 0;
		}
	}
	return pfx_fail(PFX_E_UNSUPPORTED, err, errlen,
		"%s: key 'general.architecture' is '%.*s', expected llama, qwen2 or qwen3",
		pfx_gguf_path(g), (int)(s.n < 40 ? s.n : 40), s.s);
}

/* An integer in [1, max]; required unless *v holds a default. */
static int read_count(const struct pfx_gguf *g, const char *arch, const char *key, uint32_t max,
	uint32_t *v, char *err, size_t errlen)
{
	char name[128];
	int rc;

	arch_key(name, sizeof(name), arch, key);
	if (*v != 0 && pfx_gguf_u32(g, name, v, NULL, 0) == -ENOENT) {
		return 0;
	}
	rc = pfx_gguf_u32(g, name, v, err, errlen);
	if (rc == -ENOENT) {
		return PFX_E_FORMAT;
	}
	if (rc == 0 && (*v < 1 || *v > max)) {
		return pfx_fail(PFX_E_FORMAT, err, errlen, "%s: key '%s' is %u, expected 1 to %u",
			pfx_gguf_path(g), name, *v, max);
	}
	return rc;
}

static int read_heads(const struct pfx_gguf *g, const char *arch, struct pfx_model_config *c,
	char *err, size_t errlen)
{
	uint32_t value_dim;
	int rc = read_count(g, arch, "attention.head_count", HEADS_MAX, &c->n_heads, err, errlen);

	if (rc != 0) {
		return rc;
	}
	c->n_kv_heads = c->n_heads;
	rc = read_count(g, arch, "attention.head_count_kv", HEADS_MAX, &c->n_kv_heads, err, errlen);
	if (rc != 0) {
		return rc;
	}
	if (c->n_heads % c->n_kv_heads != 0) {
		return pfx_fail(PFX_E_FORMAT, err, errlen,
			"%s: key '%s.attention.head_count_kv' is %u, expected a divisor of the %u "
			"heads",
			pfx_gguf_path(g), arch, c->n_kv_heads, c->n_heads);
	}
	if (c->n_embd % c->n_heads == 0) {
		c->head_dim = c->n_embd / c->n_heads;
	}
	rc = read_count(g, arch, "attention.key_length", HEAD_DIM_MAX, &c->head_dim, err, errlen);
	if (rc != 0) {
		return rc;
	}
	value_dim = c->head_dim;
	rc = read_count(g, arch, "attention.value_length", HEAD_DIM_MAX, &value_dim, err, errlen);
	if (rc != 0) {
		return rc;
	}
	if (value_dim != c->head_dim) {
		return pfx_fail(PFX_E_UNSUPPORTED, err, errlen,
			"%s: key '%s.attention.value_length' is %u, expected the key length %u",
			pfx_gguf_path(g), arch, value_dim, c->head_dim);
	}
	if (c->head_dim % 2 != 0 || c->head_dim > HEAD_DIM_MAX) {
		return pfx_fail(PFX_E_UNSUPPORTED, err, errlen,
			"%s: heads have %u dimensions, expected an even number up to %u",
			pfx_gguf_path(g), c->head_dim, HEAD_DIM_MAX);
	}
	return 0;
}

static int read_eps(const struct pfx_gguf *g, const char *arch, struct pfx_model_config *c,
	char *err, size_t errlen)
{
	c->rms_eps = NAN;
	int rc =
		pfx_arch_f32(g, arch, "attention.layer_norm_rms_epsilon", &c->rms_eps, err, errlen);

	if (rc == 0 && !(c->rms_eps >= 0.0f && c->rms_eps < 1.0f)) {
		return pfx_fail(PFX_E_FORMAT, err, errlen,
			"%s: key '%s.attention.layer_norm_rms_epsilon' is missing or no number in "
			"[0, 1)",
			pfx_gguf_path(g), arch);
	}
	return rc;
}

/* Things that a file of these architectures may say and that change the forward pass. */
static int refuse_variants(const struct pfx_gguf *g, const char *arch, char *err, size_t errlen)
{
	static const struct {
		const char *key;
		const char *what;
	} variants[] = {
		{ "expert_count", "a mixture of experts" },
		{ "attention.causal", "attention that is not causal" },
		{ "logit_scale", "scaled logits" },
		{ "embedding_scale", "scaled embeddings" },
		{ "residual_scale", "scaled residuals" },
		{ "attention.scale", "scaled attention" },
		{ "attn_logit_softcapping", "capped attention scores" },
		{ "final_logit_softcapping", "capped logits" },
	};
	char name[128];
	uint32_t u;
	float f;
	int b;

	for (size_t i = 0; i < sizeof(variants) / sizeof(variants[0]); i++) {
		int plain;
		arch_key(name, sizeof(name), arch, variants[i].key);
		int ru = pfx_gguf_u32(g, name, &u, NULL, 0);
		int rf = pfx_gguf_f32(g, name, &f, NULL, 0);
		if (ru == -ENOENT) {
			continue;
		}
		if (pfx_gguf_bool(g, name, &b, NULL, 0) == 0) {
			plain = b; /* causal: true */
		} else {
			plain = (ru == 0 && u == 0) || (rf == 0 && f == 0.0f);
		}
		if (!plain) {
			return pfx_fail(PFX_E_UNSUPPORTED, err, errlen,
				"%s: key '%s' asks for %s, expected a model without",
				pfx_gguf_path(g), name, variants[i].what);
		}
	}
	return 0;
}

/*
 * Within its window a sliding-window model is an ordinary one, so the context is cut to the
 * window instead of refusing the model.
 */
static int read_context(const struct pfx_gguf *g, const char *arch, struct pfx_model_config *c,
	char *err, size_t errlen)
{
	uint32_t window = 0;
	int rc = read_count(g, arch, "context_length", CONTEXT_MAX, &c->n_ctx_train, err, errlen);

	if (rc == 0) {
		rc = pfx_arch_u32(g, arch, "attention.sliding_window", &window, err, errlen);
	}
	if (rc == 0 && window != 0 && window < c->n_ctx_train) {
		pfx_warn("engine", "sliding-window attention: context cut to the window window=%u "
			"context=%u", window, c->n_ctx_train);
		c->n_ctx_train = window;
	}
	return rc;
}

int pfx_model_config_read(const struct pfx_gguf *g, struct pfx_model_config *out,
	const struct pfx_arch **arch, char *err, size_t errlen)
{
	struct pfx_model_config c = { 0 };
	struct pfx_str name;
	int rc = find_arch(g, arch, err, errlen);

	if (rc != 0) {
		return rc;
	}
	const char *a = (*arch)->name;
	snprintf(c.architecture, sizeof(c.architecture), "%s", a);
	if (pfx_gguf_str(g, "general.name", &name, NULL, 0) == 0) {
		snprintf(c.name, sizeof(c.name), "%.*s",
			(int)(name.n < sizeof(c.name) ? name.n : sizeof(c.name)), name.s);
	}
	c.qkv_bias = (*arch)->qkv_bias;
	c.qk_norm = (*arch)->qk_norm;
	if ((rc = read_count(g, a, "block_count", LAYERS_MAX, &c.n_layers, err, errlen)) != 0 ||
		(rc = read_count(g, a, "embedding_length", WIDTH_MAX, &c.n_embd, err,
			errlen)) != 0 ||
		(rc = read_count(g, a, "feed_forward_length", WIDTH_MAX, &c.n_ff, err,
			errlen)) != 0 ||
		(rc = read_heads(g, a, &c, err, errlen)) != 0 ||
		(rc = read_eps(g, a, &c, err, errlen)) != 0 ||
		(rc = refuse_variants(g, a, err, errlen)) != 0 ||
		(rc = read_context(g, a, &c, err, errlen)) != 0) {
		return rc;
	}
	*out = c;
	return 0;
}

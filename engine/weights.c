#include "engine/weights.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"

/* More ids than this no tokenizer has; it keeps a row of logits within 64 MiB. */
#define VOCAB_MAX (1u << 24)

struct loader {
	const struct pfx_ops *ops;
	struct pfx_device *dev;
	const struct pfx_gguf *g;
	struct pfx_model_config *config;
	struct pfx_weights *out;
	uint8_t *used; /* by number of tensor */
	char name[64]; /* of the tensor that is at hand */
	char *err;
	size_t errlen;
};

/* --- finding --------------------------------------------------------------------- */

static const struct pfx_gguf_tensor *find(struct loader *l, const char *name)
{
	const struct pfx_gguf_tensor *t = pfx_gguf_tensor(l->g, name);

	snprintf(l->name, sizeof(l->name), "%s", name);
	if (t != NULL) {
		l->used[t - pfx_gguf_tensor_at(l->g, 0)] = 1;
	}
	return t;
}

static const char *layer_name(char name[64], uint32_t layer, const char *what)
{
	snprintf(name, 64, "blk.%u.%s", layer, what);
	return name;
}

/* A matrix [n][k], or a vector [k] when n is 0. */
static int find_shaped(struct loader *l, const char *name, uint32_t k, uint32_t n,
	const struct pfx_gguf_tensor **out)
{
	const struct pfx_gguf_tensor *t = find(l, name);
	const char *path = pfx_gguf_path(l->g);

	if (t == NULL) {
		return pfx_fail(PFX_E_FORMAT, l->err, l->errlen,
			"%s: tensor '%s' is missing, expected one of %u x %u", path, name, k,
			n ? n : 1);
	}
	if (t->dims[0] != k || t->dims[1] != (n ? n : 1) || t->dims[2] != 1 || t->dims[3] != 1) {
		return pfx_fail(PFX_E_FORMAT, l->err, l->errlen,
			"%s: tensor '%s' is %" PRIu64 " x %" PRIu64 " x %" PRIu64 " x %" PRIu64
			", expected %u x %u",
			path, name, t->dims[0], t->dims[1], t->dims[2], t->dims[3], k, n ? n : 1);
	}
	*out = t;
	return 0;
}

/* --- packing --------------------------------------------------------------------- */

static int packed(struct loader *l, int rc, struct pfx_weight *const *w)
{
	if (rc != 0) {
		return pfx_fail(rc, l->err, l->errlen,
			"%s: tensor '%s' cannot be packed for the %s backend: %s",
			pfx_gguf_path(l->g), l->name, l->ops->name, pfx_strerror(rc));
	}
	l->out->bytes += l->ops->weight_bytes(*w);
	return 0;
}

struct wanted {
	const char *name;
	uint32_t n;
};

/* A matrix out of one or more tensors with the same k, stacked. */
static int pack_matrix(struct loader *l, const struct wanted *wanted, uint32_t n_parts, uint32_t k,
	struct pfx_weight **out)
{
	struct pfx_weight_part parts[3];

	for (uint32_t i = 0; i < n_parts; i++) {
		const struct pfx_gguf_tensor *t = NULL;
		int rc = find_shaped(l, wanted[i].name, k, wanted[i].n, &t);
		if (rc != 0) {
			return rc;
		}
		parts[i] = (struct pfx_weight_part){ t->type, wanted[i].n, t->data };
	}
	return packed(l, l->ops->weight_pack(l->dev, parts, n_parts, k, out), out);
}

static int pack_vector(struct loader *l, const char *name, uint32_t n, struct pfx_weight **out)
{
	const struct pfx_gguf_tensor *t = NULL;
	int rc = find_shaped(l, name, n, 0, &t);

	if (rc != 0) {
		return rc;
	}
	return packed(l, l->ops->vector_pack(l->dev, t->type, t->data, n, out), out);
}

/* The three biases as one vector, since the three products are one. */
static int pack_bias(struct loader *l, const struct wanted *wanted, uint32_t n_parts,
	struct pfx_weight **out)
{
	uint32_t n = 0, at = 0;
	float *all;
	int rc = 0;

	for (uint32_t i = 0; i < n_parts; i++) {
		n += wanted[i].n;
	}
	all = pfx_calloc(n, sizeof(*all));
	if (all == NULL) {
		return pfx_fail(-ENOMEM, l->err, l->errlen, "%s: no memory", pfx_gguf_path(l->g));
	}
	for (uint32_t i = 0; i < n_parts && rc == 0; i++) {
		const struct pfx_gguf_tensor *t = NULL;
		rc = find_shaped(l, wanted[i].name, wanted[i].n, 0, &t);
		if (rc == 0) {
			pfx_dtype_widen(t->type, t->data, wanted[i].n, all + at);
			at += wanted[i].n;
		}
	}
	if (rc == 0) {
		rc = packed(l, l->ops->vector_pack(l->dev, PFX_F32, all, n, out), out);
	}
	pfx_free(all);
	return rc;
}

static int load_attention(struct loader *l, uint32_t i, struct pfx_layer_weights *w)
{
	const struct pfx_model_config *c = l->config;
	uint32_t n_q = c->n_heads * c->head_dim, n_kv = c->n_kv_heads * c->head_dim;
	char q[64], k[64], v[64], name[64];
	struct wanted parts[3] = {
		{ layer_name(q, i, "attn_q.weight"), n_q },
		{ layer_name(k, i, "attn_k.weight"), n_kv },
		{ layer_name(v, i, "attn_v.weight"), n_kv },
	};
	struct wanted out = { name, c->n_embd };
	int rc = pack_vector(l, layer_name(name, i, "attn_norm.weight"), c->n_embd, &w->attn_norm);

	if (rc == 0) {
		rc = pack_matrix(l, parts, 3, c->n_embd, &w->qkv);
	}
	if (rc == 0 && c->qkv_bias) {
		layer_name(q, i, "attn_q.bias");
		layer_name(k, i, "attn_k.bias");
		layer_name(v, i, "attn_v.bias");
		rc = pack_bias(l, parts, 3, &w->qkv_bias);
	}
	if (rc == 0 && c->qk_norm) {
		rc = pack_vector(
			l, layer_name(name, i, "attn_q_norm.weight"), c->head_dim, &w->q_norm);
	}
	if (rc == 0 && c->qk_norm) {
		rc = pack_vector(
			l, layer_name(name, i, "attn_k_norm.weight"), c->head_dim, &w->k_norm);
	}
	if (rc == 0) {
		layer_name(name, i, "attn_output.weight");
		rc = pack_matrix(l, &out, 1, n_q, &w->attn_out);
	}
	return rc;
}

static int load_mlp(struct loader *l, uint32_t i, struct pfx_layer_weights *w)
{
	const struct pfx_model_config *c = l->config;
	char gate[64], up[64], name[64];
	struct wanted parts[2] = {
		{ layer_name(gate, i, "ffn_gate.weight"), c->n_ff },
		{ layer_name(up, i, "ffn_up.weight"), c->n_ff },
	};
	struct wanted down = { name, c->n_embd };
	int rc = pack_vector(l, layer_name(name, i, "ffn_norm.weight"), c->n_embd, &w->ffn_norm);

	if (rc == 0) {
		rc = pack_matrix(l, parts, 2, c->n_embd, &w->gate_up);
	}
	if (rc == 0) {
		layer_name(name, i, "ffn_down.weight");
		rc = pack_matrix(l, &down, 1, c->n_ff, &w->down);
	}
	return rc;
}

static int load_ends(struct loader *l)
{
	struct pfx_model_config *c = l->config;
	const struct pfx_gguf_tensor *t = pfx_gguf_tensor(l->g, "token_embd.weight");
	struct wanted embed = { "token_embd.weight", 1 }, head = { "output.weight", 1 };
	int rc;

	if (t != NULL && (t->dims[1] < 1 || t->dims[1] > VOCAB_MAX)) {
		return pfx_fail(PFX_E_FORMAT, l->err, l->errlen,
			"%s: tensor 'token_embd.weight' has %" PRIu64 " rows, expected 1 to %u",
			pfx_gguf_path(l->g), t->dims[1], VOCAB_MAX);
	}
	c->n_vocab = embed.n = head.n = t != NULL ? (uint32_t)t->dims[1] : 1;
	rc = pack_matrix(l, &embed, 1, c->n_embd, &l->out->embed);
	if (rc == 0) {
		rc = pack_vector(l, "output_norm.weight", c->n_embd, &l->out->output_norm);
	}
	c->tied_head = pfx_gguf_tensor(l->g, "output.weight") == NULL;
	if (rc == 0 && !c->tied_head) {
		rc = pack_matrix(l, &head, 1, c->n_embd, &l->out->head);
	} else if (rc == 0) {
		l->out->head = l->out->embed;
	}
	return rc;
}

/* Tensors that carry nothing which the forward pass does not compute by itself. */
static int is_known_extra(const struct pfx_gguf_tensor *t)
{
	static const char factors[] = "rope_freqs.weight", old[] = ".attn_rot_embd";

	if (t->name.n == sizeof(factors) - 1 && memcmp(t->name.s, factors, t->name.n) == 0) {
		return 1; /* engine/rope.c reads it */
	}
	return t->name.n > sizeof(old) - 1 &&
		memcmp(t->name.s + t->name.n - (sizeof(old) - 1), old, sizeof(old) - 1) == 0;
}

static int refuse_unused(struct loader *l)
{
	for (uint32_t i = 0; i < pfx_gguf_n_tensors(l->g); i++) {
		const struct pfx_gguf_tensor *t = pfx_gguf_tensor_at(l->g, i);
		if (!l->used[i] && !is_known_extra(t)) {
			return pfx_fail(PFX_E_UNSUPPORTED, l->err, l->errlen,
				"%s: tensor '%.*s' is not part of a %s model of %u layers as "
				"known here",
				pfx_gguf_path(l->g), (int)t->name.n, t->name.s,
				l->config->architecture, l->config->n_layers);
		}
	}
	return 0;
}

static int load(struct loader *l, void (*progress)(void *arg, double done), void *progress_arg)
{
	struct pfx_model_config *c = l->config;
	int rc = load_ends(l);

	if (c->qkv_bias < 0) {
		c->qkv_bias = pfx_gguf_tensor(l->g, "blk.0.attn_q.bias") != NULL;
	}
	for (uint32_t i = 0; i < c->n_layers && rc == 0; i++) {
		if (progress != NULL) {
			progress(progress_arg, (i + 1.0) / (c->n_layers + 1.0));
		}
		rc = load_attention(l, i, &l->out->layers[i]);
		if (rc == 0) {
			rc = load_mlp(l, i, &l->out->layers[i]);
		}
	}
	if (rc == 0) {
		rc = refuse_unused(l);
	}
	if (rc == 0 && progress != NULL) {
		progress(progress_arg, 1.0);
	}
	return rc;
}

int pfx_weights_open(struct pfx_weights *out, const struct pfx_ops *ops, struct pfx_device *dev,
	const struct pfx_gguf *g, struct pfx_model_config *config,
	void (*progress)(void *arg, double done), void *progress_arg, char *err, size_t errlen)
{
	struct loader l = { .ops = ops, .dev = dev, .g = g, .config = config, .out = out,
		.err = err, .errlen = errlen };
	int rc;

	memset(out, 0, sizeof(*out));
	out->n_layers = config->n_layers;
	out->layers = pfx_calloc(config->n_layers, sizeof(*out->layers));
	l.used = pfx_calloc(pfx_gguf_n_tensors(g), 1);
	if (out->layers == NULL || l.used == NULL) {
		rc = pfx_fail(-ENOMEM, err, errlen, "%s: no memory", pfx_gguf_path(g));
	} else {
		rc = load(&l, progress, progress_arg);
	}
	pfx_free(l.used);
	if (rc != 0) {
		pfx_weights_close(out, ops, dev);
	}
	return rc;
}

void pfx_weights_close(struct pfx_weights *w, const struct pfx_ops *ops, struct pfx_device *dev)
{
	for (uint32_t i = 0; w->layers != NULL && i < w->n_layers; i++) {
		struct pfx_layer_weights *lw = &w->layers[i];
		struct pfx_weight *all[] = { lw->attn_norm, lw->ffn_norm, lw->qkv, lw->qkv_bias,
			lw->q_norm, lw->k_norm, lw->attn_out, lw->gate_up, lw->down };
		for (size_t j = 0; j < sizeof(all) / sizeof(all[0]); j++) {
			ops->weight_free(dev, all[j]);
		}
	}
	pfx_free(w->layers);
	if (w->head != w->embed) {
		ops->weight_free(dev, w->head);
	}
	ops->weight_free(dev, w->embed);
	ops->weight_free(dev, w->output_norm);
	memset(w, 0, sizeof(*w));
}

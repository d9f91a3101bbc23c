/* A step of the model: one batch through all layers, then as many logits as are asked for. */
#include <math.h>

#include "base/assert.h"
#include "engine/model_priv.h"

/* What the engine promises about a batch; a breach is a bug of ours. */
static void check_batch(const struct pfx_model *m, const struct pfx_batch *b)
{
	uint32_t block_tokens = m->kv_shape.block_tokens, row = 0;

	PFX_ASSERT(b->n_rows >= 1);
	PFX_ASSERT(b->n_rows <= m->rows_max);
	PFX_ASSERT(b->n_seqs <= m->seqs_max);
	PFX_ASSERT(b->n_out <= b->n_rows);
	for (uint32_t i = 0; i < b->n_rows; i++) {
		PFX_ASSERT(b->tokens[i] < m->config.n_vocab);
	}
	for (uint32_t i = 0; i < b->n_out; i++) {
		PFX_ASSERT(b->out_rows[i] < b->n_rows);
	}
	for (uint32_t i = 0; i < b->n_seqs; i++) {
		const struct pfx_batch_seq *s = &b->seqs[i];
		PFX_ASSERT(s->first_row == row);
		PFX_ASSERT(s->n_rows >= 1);
		row += s->n_rows;
		PFX_ASSERT((uint64_t)s->pos0 + s->n_rows <= (uint64_t)s->n_blocks * block_tokens);
		for (uint32_t j = 0; j < s->n_blocks; j++) {
			PFX_ASSERT(s->blocks[j] < m->n_blocks);
		}
	}
	PFX_ASSERT(row == b->n_rows);
}

/* An operation is over, and with it its phase. */
static int lap(struct pfx_model *m, enum pfx_phase phase, int rc)
{
	pfx_profile_lap(&m->profile, phase, m->ops->waited(m->dev));
	return rc;
}

static int attention(struct pfx_model *m, uint32_t layer, uint32_t n_rows)
{
	const struct pfx_model_config *c = &m->config;
	const struct pfx_layer_weights *w = &m->weights.layers[layer];
	const struct pfx_ops *ops = m->ops;
	float scale = 1.0f / sqrtf((float)c->head_dim);
	int rc;

	if ((rc = lap(m, PFX_PHASE_NORM, ops->rmsnorm(m->dev, m->x, w->attn_norm, c->rms_eps,
			c->n_embd, 0, m->h))) != 0 ||
		(rc = lap(m, PFX_PHASE_PRODUCT, ops->matmul(m->dev, w->qkv, m->h, 0, n_rows,
			w->qkv_bias, 0, m->qkv))) != 0 ||
		(rc = lap(m, PFX_PHASE_ROPE_KV, ops->rope_kv(m->dev, m->kv, layer, c->n_heads,
			w->q_norm, w->k_norm, c->rms_eps, m->qkv))) != 0 ||
		(rc = lap(m, PFX_PHASE_ATTENTION, ops->attention(m->dev, m->kv, layer, c->n_heads,
			scale, m->qkv, m->att))) != 0) {
		return rc;
	}
	return lap(m, PFX_PHASE_PRODUCT,
		ops->matmul(m->dev, w->attn_out, m->att, 0, n_rows, NULL, 1, m->x));
}

static int mlp(struct pfx_model *m, uint32_t layer, uint32_t n_rows)
{
	const struct pfx_model_config *c = &m->config;
	const struct pfx_layer_weights *w = &m->weights.layers[layer];
	const struct pfx_ops *ops = m->ops;
	int rc;

	if ((rc = lap(m, PFX_PHASE_NORM, ops->rmsnorm(m->dev, m->x, w->ffn_norm, c->rms_eps,
			c->n_embd, 0, m->h))) != 0 ||
		(rc = lap(m, PFX_PHASE_PRODUCT, ops->matmul(m->dev, w->gate_up, m->h, 0, n_rows,
			NULL, 0, m->gate_up))) != 0 ||
		(rc = lap(m, PFX_PHASE_GATE, ops->gated(m->dev, PFX_ACT_SILU, m->gate_up, c->n_ff,
			m->act))) != 0) {
		return rc;
	}
	return lap(m, PFX_PHASE_PRODUCT,
		ops->matmul(m->dev, w->down, m->act, 0, n_rows, NULL, 1, m->x));
}

int pfx_model_forward(struct pfx_model *m, const struct pfx_batch *batch)
{
	const struct pfx_model_config *c = &m->config;
	const struct pfx_ops *ops = m->ops;
	int rc;

	check_batch(m, batch);
	m->n_out = 0; /* until all has gone well */
	rc = lap(m, PFX_PHASE_BATCH, ops->begin(m->dev, batch, &m->rope.rope));
	if (rc == 0) {
		rc = lap(m, PFX_PHASE_EMBED, ops->embed(m->dev, m->weights.embed, 1.0f, m->x));
	}
	for (uint32_t i = 0; i < c->n_layers && rc == 0; i++) {
		rc = attention(m, i, batch->n_rows);
		if (rc == 0) {
			rc = mlp(m, i, batch->n_rows);
		}
	}
	if (rc == 0 && batch->n_out > 0) {
		rc = ops->rmsnorm(
			m->dev, m->x, m->weights.output_norm, c->rms_eps, c->n_embd, 1, m->h);
	}
	if (rc == 0) {
		rc = lap(m, PFX_PHASE_NORM, ops->sync(m->dev));
	}
	if (rc == 0) {
		m->n_out = batch->n_out;
	}
	return rc;
}

int pfx_model_logits(struct pfx_model *m, uint32_t first, uint32_t n, const float **logits)
{
	int rc;

	PFX_ASSERT(n <= m->out_rows_max);
	PFX_ASSERT(first <= m->n_out);
	PFX_ASSERT(n <= m->n_out - first);
	*logits = m->logits_host;
	if (n == 0) {
		return 0;
	}
	rc = m->ops->matmul(m->dev, m->weights.head, m->h, first, n, NULL, 0, m->logits);
	if (rc == 0) {
		rc = m->ops->mem_read(m->dev, m->logits, 0, m->logits_host,
			(size_t)n * m->config.n_vocab * sizeof(float));
	}
	return lap(m, PFX_PHASE_HEAD, rc);
}

#include "engine/model.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/error.h"
#include "engine/model_config.h"
#include "engine/model_priv.h"

static int check_opts(const struct pfx_model_opts *o, char *err, size_t errlen)
{
	uint32_t b = o->block_tokens;

	if (b < 1 || b > PFX_SEGMENT || (b & (b - 1)) != 0) {
		return pfx_fail(-EINVAL, err, errlen,
			"block size is %u tokens, expected a power of two up to %u", b,
			PFX_SEGMENT);
	}
	if (o->rows_max < 1 || o->seqs_max < 1 || o->out_rows_max < 1) {
		return pfx_fail(-EINVAL, err, errlen,
			"a batch is limited to %u rows, %u sequences and %u rows of logits, "
			"expected at least one each",
			o->rows_max, o->seqs_max, o->out_rows_max);
	}
	return 0;
}

static int open_kv(struct pfx_model *m, const struct pfx_gguf *g, const struct pfx_model_opts *o,
	char *err, size_t errlen)
{
	const struct pfx_model_config *c = &m->config;
	uint64_t n;
	int rc;

	m->kv_shape = (struct pfx_kv_shape){ c->n_layers, c->n_kv_heads, c->head_dim,
		o->block_tokens, o->kv_type };
	m->block_bytes = m->ops->kv_block_bytes(&m->kv_shape);
	if (m->block_bytes == 0) {
		return pfx_fail(PFX_E_UNSUPPORTED, err, errlen,
			"%s: heads have %u dimensions, which the %s backend has no kernels for with "
			"keys and values as %s",
			pfx_gguf_path(g), c->head_dim, m->ops->name,
			o->kv_type == PFX_KV_INT8 ? "int8" : "f16");
	}
	n = o->kv_bytes_max / m->block_bytes;
	if (n == 0) {
		return pfx_fail(-EINVAL, err, errlen,
			"device memory is limited to %" PRIu64
			" bytes, expected at least the %zu of one block of %u tokens",
			o->kv_bytes_max, m->block_bytes, o->block_tokens);
	}
	if (n >= UINT32_MAX) {
		return pfx_fail(-EINVAL, err, errlen,
			"device memory is limited to %" PRIu64
			" bytes, expected fewer than %u blocks of %zu bytes",
			o->kv_bytes_max, UINT32_MAX, m->block_bytes);
	}
	m->n_blocks = (uint32_t)n;
	rc = m->ops->kv_open(m->dev, &m->kv_shape, m->n_blocks, &m->kv);
	if (rc == PFX_E_UNSUPPORTED) {
		return pfx_fail(rc, err, errlen,
			"%s: heads have %u dimensions, which the %s backend has no kernels for with "
			"keys and values as %s",
			pfx_gguf_path(g), c->head_dim, m->ops->name,
			o->kv_type == PFX_KV_INT8 ? "int8" : "f16");
	}
	if (rc != 0) {
		return pfx_fail(rc, err, errlen,
			"no memory for %u blocks of %zu bytes of keys and values: %s", m->n_blocks,
			m->block_bytes, pfx_strerror(rc));
	}
	return 0;
}

static int open_activations(struct pfx_model *m, char *err, size_t errlen)
{
	const struct pfx_model_config *c = &m->config;
	size_t n_q = (size_t)c->n_heads * c->head_dim;
	size_t n_qkv = n_q + 2 * (size_t)c->n_kv_heads * c->head_dim;
	struct {
		struct pfx_mem **mem;
		size_t rows, width;
	} wanted[] = {
		{ &m->x, m->rows_max, c->n_embd },
		{ &m->h, m->rows_max, c->n_embd },
		{ &m->qkv, m->rows_max, n_qkv },
		{ &m->att, m->rows_max, n_q },
		{ &m->gate_up, m->rows_max, 2 * (size_t)c->n_ff },
		{ &m->act, m->rows_max, c->n_ff },
		{ &m->logits, m->out_rows_max, c->n_vocab },
	};
	int rc = 0;

	for (size_t i = 0; i < sizeof(wanted) / sizeof(wanted[0]) && rc == 0; i++) {
		rc = m->ops->mem_alloc(m->dev, wanted[i].rows * wanted[i].width * sizeof(float),
			wanted[i].mem);
	}
	m->logits_host =
		pfx_reallocarray(NULL, (size_t)m->out_rows_max * c->n_vocab, sizeof(float));
	if (rc != 0 || m->logits_host == NULL) {
		return pfx_fail(rc != 0 ? rc : -ENOMEM, err, errlen,
			"no memory for the activations of %u rows and %u rows of logits",
			m->rows_max, m->out_rows_max);
	}
	return 0;
}

static int open_model(struct pfx_model *m, const struct pfx_gguf *g,
	const struct pfx_model_opts *o, char *err, size_t errlen)
{
	struct pfx_device_opts dev_opts = { o->kernels, o->n_threads, o->pin_threads, o->activations };
	const struct pfx_arch *arch = NULL;
	int rc = check_opts(o, err, errlen);

	if (rc != 0) {
		return rc;
	}
	m->rows_max = o->rows_max;
	m->seqs_max = o->seqs_max;
	m->out_rows_max = o->out_rows_max;
	if ((rc = pfx_model_config_read(g, &m->config, &arch, err, errlen)) != 0 ||
		(rc = pfx_rope_open(&m->rope, g, arch, &m->config, err, errlen)) != 0) {
		return rc;
	}
	m->ops = pfx_ops_find(o->backend != NULL ? o->backend : "auto", err, errlen);
	if (m->ops == NULL) {
		return PFX_E_UNSUPPORTED;
	}
	if ((rc = m->ops->open(&m->dev, &dev_opts, err, errlen)) != 0 ||
		(rc = pfx_weights_open(&m->weights, m->ops, m->dev, g, &m->config, o->progress,
			o->progress_arg, err, errlen)) != 0 ||
		(rc = open_kv(m, g, o, err, errlen)) != 0) {
		return rc;
	}
	return open_activations(m, err, errlen);
}

int pfx_model_open(struct pfx_model **out, const struct pfx_gguf *g,
	const struct pfx_model_opts *opts, char *err, size_t errlen)
{
	struct pfx_model *m = pfx_calloc(1, sizeof(*m));
	int rc;

	*out = NULL;
	if (m == NULL) {
		return pfx_fail(-ENOMEM, err, errlen, "%s: no memory", pfx_gguf_path(g));
	}
	rc = open_model(m, g, opts, err, errlen);
	if (rc != 0) {
		pfx_model_close(m);
		return rc;
	}
	*out = m;
	return 0;
}

void pfx_model_close(struct pfx_model *m)
{
	if (m == NULL) {
		return;
	}
	if (m->dev != NULL) {
		struct pfx_mem *mems[] = {
			m->x, m->h, m->qkv, m->att, m->gate_up, m->act, m->logits};
		for (size_t i = 0; i < sizeof(mems) / sizeof(mems[0]); i++) {
			m->ops->mem_free(m->dev, mems[i]);
		}
		m->ops->kv_close(m->dev, m->kv);
		pfx_weights_close(&m->weights, m->ops, m->dev);
		m->ops->close(m->dev);
	}
	pfx_rope_close(&m->rope);
	pfx_free(m->logits_host);
	pfx_free(m);
}

const struct pfx_model_config *pfx_model_config(const struct pfx_model *m)
{
	return &m->config;
}

void pfx_model_device(const struct pfx_model *m, struct pfx_device_info *out)
{
	m->ops->info(m->dev, out);
}

struct pfx_profile *pfx_model_profile(struct pfx_model *m)
{
	return &m->profile;
}

void pfx_model_enter(struct pfx_model *m)
{
	m->ops->enter(m->dev);
}

uint32_t pfx_model_n_blocks(const struct pfx_model *m)
{
	return m->n_blocks;
}

size_t pfx_model_block_bytes(const struct pfx_model *m)
{
	return m->block_bytes;
}

size_t pfx_model_weight_bytes(const struct pfx_model *m)
{
	return m->weights.bytes;
}

int pfx_model_copy_block(struct pfx_model *m, uint32_t dst, uint32_t src, uint32_t n)
{
	PFX_ASSERT(dst < m->n_blocks);
	PFX_ASSERT(src < m->n_blocks);
	PFX_ASSERT(n <= m->kv_shape.block_tokens);
	return m->ops->kv_copy(m->dev, m->kv, dst, src, n);
}

int pfx_model_read_block(struct pfx_model *m, uint32_t block, uint32_t n, void *dst)
{
	PFX_ASSERT(block < m->n_blocks);
	PFX_ASSERT(n <= m->kv_shape.block_tokens);
	return m->ops->kv_read(m->dev, m->kv, block, n, dst);
}

void pfx_model_trim_block(const struct pfx_model *m, void *block, uint32_t n)
{
	m->ops->kv_trim(m->kv, block, n);
}

int pfx_model_write_block(struct pfx_model *m, uint32_t block, const void *src)
{
	PFX_ASSERT(block < m->n_blocks);
	return m->ops->kv_write(m->dev, m->kv, block, src);
}

void pfx_model_describe_kv(const struct pfx_model *m, struct pfx_buf *out)
{
	const struct pfx_model_config *c = &m->config;
	const struct pfx_rope *rope = &m->rope.rope;
	struct pfx_device_info device;

	pfx_model_device(m, &device);
	pfx_buf_addf(out, "architecture %s layers %u embd %u heads %u kv_heads %u head_dim %u ff %u "
		"vocab %u eps %a qkv_bias %d qk_norm %d\n", c->architecture, c->n_layers, c->n_embd,
		c->n_heads, c->n_kv_heads, c->head_dim, c->n_ff, c->n_vocab, (double)c->rms_eps,
		c->qkv_bias, c->qk_norm);
	pfx_buf_addf(out, "rope %d dims %u magnitude %a", (int)rope->kind, rope->n_dims,
		(double)rope->magnitude);
	for (uint32_t i = 0; i < rope->n_dims / 2; i++) {
		pfx_buf_addf(out, " %a", (double)rope->inv_freq[i]);
	}
	pfx_buf_addf(out, "\nkv type %d block %u bytes %zu\n", (int)m->kv_shape.type,
		m->kv_shape.block_tokens, m->block_bytes);
	/* Not the variant of the kernels: within a backend all give the same bits. */
	pfx_buf_addf(out, "backend %s arithmetic %u activations %s\n", device.backend,
		device.arithmetic, device.activations);
}

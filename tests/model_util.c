#include "tests/model_util.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/error.h"
#include "engine/model_config.h"

const char *pfx_test_model_path(const char **why)
{
	const char *path = getenv("PREFIXD_MODEL");

	if (path == NULL || path[0] == '\0') {
		*why = "PREFIXD_MODEL names no model";
		return NULL;
	}
	if (access(path, R_OK) != 0) {
		*why = "the file that PREFIXD_MODEL names cannot be read";
		return NULL;
	}
	return path;
}

static _Noreturn void bail_out(const char *what, const char *err)
{
	printf("Bail out! %s: %s\n", what, err);
	exit(1);
}

static uint64_t block_bytes(const struct pfx_gguf *g, uint32_t block_tokens, enum pfx_kv_type type)
{
	const struct pfx_arch *arch;
	struct pfx_model_config c;
	char err[400] = "";

	if (pfx_model_config_read(g, &c, &arch, err, sizeof(err)) != 0) {
		bail_out("open", err);
	}
	struct pfx_kv_shape shape = { c.n_layers, c.n_kv_heads, c.head_dim, block_tokens, type };
	return pfx_ops_find("cpu", err, sizeof(err))->kv_block_bytes(&shape);
}

struct pfx_model *pfx_test_model_open(const char *path, const struct pfx_test_model_opts *opts)
{
	struct pfx_test_model_opts t = *opts;
	struct pfx_model_opts o = { .backend = "cpu", .kernels = t.kernels, .activations = t.activations,
		.n_threads = 1, .pin_threads = t.pin_threads, .block_tokens = 16, .kv_type = t.kv_type,
		.rows_max = 512, .out_rows_max = 512, .seqs_max = 64 };
	uint32_t n_blocks = t.n_blocks ? t.n_blocks : 64;
	struct pfx_gguf *g;
	struct pfx_model *m;
	char err[400] = "";

	o.n_threads = t.n_threads ? t.n_threads : o.n_threads;
	o.block_tokens = t.block_tokens ? t.block_tokens : o.block_tokens;
	o.rows_max = t.rows_max ? t.rows_max : o.rows_max;
	o.out_rows_max = t.out_rows_max ? t.out_rows_max : o.out_rows_max;
	if (pfx_gguf_open(&g, path, err, sizeof(err)) != 0) {
		bail_out("open", err);
	}
	o.kv_bytes_max = n_blocks * block_bytes(g, o.block_tokens, t.kv_type);
	if (pfx_model_open(&m, g, &o, err, sizeof(err)) != 0) {
		bail_out("open", err);
	}
	pfx_gguf_close(g);
	PFX_ASSERT(pfx_model_n_blocks(m) == n_blocks);
	return m;
}

struct pfx_model *pfx_test_model_tiny(const struct pfx_tiny_opts *tiny,
	const struct pfx_test_model_opts *opts)
{
	struct pfx_memfile file;
	struct pfx_buf image = PFX_BUF_INIT;
	struct pfx_gw w = { 0 };
	struct pfx_model *m;

	pfx_tiny_write(&w, tiny);
	pfx_gw_image(&w, &image);
	pfx_gw_free(&w);
	if (pfx_memfile_open(&file) != 0 || pfx_memfile_set(&file, image.data, image.len) != 0) {
		bail_out("tiny model", "no memfd");
	}
	pfx_buf_free(&image);
	m = pfx_test_model_open(file.path, opts);
	pfx_memfile_close(&file);
	return m;
}

/* Copies the logits of the batch's out rows, a slice at a time, to where each part wants them. */
static void fetch_logits(struct pfx_model *m, uint32_t n_out, uint32_t slice, float **rows)
{
	uint32_t n_vocab = pfx_model_config(m)->n_vocab;

	for (uint32_t first = 0; first < n_out; first += slice) {
		uint32_t n = n_out - first < slice ? n_out - first : slice;
		const float *logits;
		int rc = pfx_model_logits(m, first, n, &logits);
		if (rc != 0) {
			bail_out("logits", pfx_strerror(rc));
		}
		for (uint32_t i = 0; i < n; i++) {
			memcpy(rows[first + i], logits + (size_t)i * n_vocab,
				n_vocab * sizeof(float));
		}
	}
}

int pfx_test_try(struct pfx_model *m, const struct pfx_test_part *parts, uint32_t n_parts)
{
	uint32_t n_vocab = pfx_model_config(m)->n_vocab, n_rows = 0, n_out = 0;
	struct pfx_batch_seq *seqs = calloc(n_parts, sizeof(*seqs));
	uint32_t *tokens, *out_rows;
	float **rows;

	for (uint32_t i = 0; i < n_parts; i++) {
		n_rows += parts[i].n;
	}
	tokens = calloc(n_rows, sizeof(*tokens));
	out_rows = calloc(n_rows, sizeof(*out_rows));
	rows = calloc(n_rows, sizeof(*rows));
	PFX_ASSERT(seqs != NULL && tokens != NULL && out_rows != NULL && rows != NULL);
	n_rows = 0;
	for (uint32_t i = 0; i < n_parts; i++) {
		const struct pfx_test_part *p = &parts[i];
		seqs[i] = (struct pfx_batch_seq){ n_rows, p->n, p->pos0, p->write_from, p->n_blocks,
			p->blocks };
		for (uint32_t j = 0; j < p->n; j++, n_rows++) {
			tokens[n_rows] = p->tokens[p->pos0 + j];
			if (p->logits != NULL) {
				rows[n_out] = p->logits + (size_t)j * n_vocab;
				out_rows[n_out++] = n_rows;
			}
		}
	}
	struct pfx_batch batch = { n_rows, n_parts, n_out, tokens, seqs, out_rows };
	int rc = pfx_model_forward(m, &batch);
	if (rc == 0) {
		fetch_logits(m, n_out, 512, rows);
	}
	free(seqs);
	free(tokens);
	free(out_rows);
	free(rows);
	return rc;
}

void pfx_test_run(struct pfx_model *m, const struct pfx_test_part *parts, uint32_t n_parts)
{
	int rc = pfx_test_try(m, parts, n_parts);

	if (rc != 0) {
		bail_out("forward", pfx_strerror(rc));
	}
}

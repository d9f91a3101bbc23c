/* engine/model: what is refused at opening, and with which words. */
#include "config.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "engine/model.h"
#include "tests/gguf_write.h"
#include "tests/model_tiny.h"
#include "tests/tap.h"

static struct pfx_memfile file;

static const struct pfx_model_opts plain = { .backend = "cpu", .n_threads = 1, .block_tokens = 16,
	.kv_bytes_max = 1 << 20, .rows_max = 8, .seqs_max = 8, .out_rows_max = 8 };

static int try(struct pfx_gw *w, const struct pfx_model_opts *opts, char *err, size_t errlen)
{
	struct pfx_buf image = PFX_BUF_INIT;
	struct pfx_model *m = NULL;
	struct pfx_gguf *g = NULL;
	int rc;

	err[0] = '\0';
	pfx_gw_image(w, &image);
	if (pfx_memfile_set(&file, image.data, image.len) != 0) {
		printf("Bail out! cannot write a test file\n");
		exit(1);
	}
	pfx_buf_free(&image);
	rc = pfx_gguf_open(&g, file.path, err, errlen);
	if (rc == 0) {
		rc = pfx_model_open(&m, g, opts, err, errlen);
	}
	pfx_gguf_close(g);
	pfx_model_close(m);
	return rc;
}

/*
 * Writes a tiny model in which one key or tensor has another name (to == NULL: the first
 * letter is changed), so that it is missing under its own, and adds what the caller wants.
 */
static void rename_in(struct pfx_buf *b, const char *from, const char *to)
{
	char *at = memmem(b->data, b->len, from, strlen(from));

	if (at == NULL || (to != NULL && strlen(to) != strlen(from))) {
		printf("Bail out! %s is not in the tiny model\n", from);
		exit(1);
	}
	if (to != NULL) {
		memcpy(at, to, strlen(to));
	} else {
		at[0] = 'X';
	}
}

static void refuse(struct pfx_gw *w, int code, const char *words)
{
	uint64_t live = pfx_alloc_live();
	char err[400];

	is_int(try(w, &plain, err, sizeof(err)), code, "refused: %s", words);
	ok(strstr(err, words) != NULL && strstr(err, file.path) == err, "in words: %s", err);
	is_int((long long)pfx_alloc_live(), (long long)live, "nothing leaks");
	pfx_gw_free(w);
}

static struct pfx_gw tiny(const char *arch)
{
	struct pfx_tiny_opts o = { .architecture = arch, .n_layers = 1 };
	struct pfx_gw w = { 0 };

	pfx_tiny_write(&w, &o);
	return w;
}

/* One key overwritten: the tiny model's own is renamed away. */
static void refuse_u32(const char *key, uint32_t v, int code, const char *words)
{
	struct pfx_gw w = tiny("llama");

	if (memmem(w.keys.data, w.keys.len, key, strlen(key)) != NULL) {
		rename_in(&w.keys, key, NULL);
	}
	pfx_gw_u32(&w, key, v);
	refuse(&w, code, words);
}

static void test_keys(void)
{
	struct pfx_gw w = tiny("mamba");

	refuse(&w, PFX_E_UNSUPPORTED, "'general.architecture' is 'mamba', expected llama, qwen2");
	w = tiny("llama");
	rename_in(&w.keys, "general.architecture", NULL);
	refuse(&w, PFX_E_FORMAT, "key 'general.architecture' is missing");
	w = tiny("llama");
	rename_in(&w.keys, "llama.block_count", NULL);
	refuse(&w, PFX_E_FORMAT, "key 'llama.block_count' is missing");
	w = tiny("llama");
	rename_in(&w.keys, "llama.attention.layer_norm_rms_epsilon", NULL);
	refuse(&w, PFX_E_FORMAT, "layer_norm_rms_epsilon' is missing");
	refuse_u32("llama.block_count", 0, PFX_E_FORMAT, "'llama.block_count' is 0, expected 1 to");
	refuse_u32(
		"llama.block_count", 2, PFX_E_FORMAT, "tensor 'blk.1.attn_norm.weight' is missing");
	refuse_u32(
		"llama.embedding_length", 1u << 31, PFX_E_FORMAT, "is 2147483648, expected 1 to");
	refuse_u32("llama.embedding_length", 64, PFX_E_FORMAT,
		"tensor 'token_embd.weight' is 128 x 320 x 1 x 1, expected 64 x 320");
	refuse_u32("llama.feed_forward_length", 128, PFX_E_FORMAT,
		"tensor 'blk.0.ffn_gate.weight' is 128 x 256");
	refuse_u32("llama.attention.head_count_kv", 3, PFX_E_FORMAT, "expected a divisor of the 4");
	refuse_u32("llama.attention.head_count", 8, PFX_E_FORMAT,
		"'blk.0.attn_q.weight' is 128 x 128");
	refuse_u32("llama.attention.key_length", 31, PFX_E_UNSUPPORTED,
		"value_length' is 32, expected");
	refuse_u32("llama.attention.value_length", 16, PFX_E_UNSUPPORTED, "value_length' is 16");
	refuse_u32(
		"llama.rope.dimension_count", 33, PFX_E_FORMAT, "dimension_count' is 33, expected");
	refuse_u32(
		"llama.rope.dimension_count", 0, PFX_E_FORMAT, "dimension_count' is 0, expected");
	refuse_u32("llama.expert_count", 8, PFX_E_UNSUPPORTED, "asks for a mixture of experts");
	refuse_u32("llama.context_length", 0, PFX_E_FORMAT, "context_length' is 0");
	refuse_u32(
		"llama.rope.freq_base", 1, PFX_E_FORMAT, "freq_base' is of type u32, expected a");
}

static void test_rope_keys(void)
{
	struct pfx_gw w = tiny("llama");

	pfx_gw_str(&w, "llama.rope.scaling.type", "dynamic");
	refuse(&w, PFX_E_UNSUPPORTED, "is 'dynamic', expected none, linear or yarn");
	w = tiny("llama");
	pfx_gw_str(&w, "llama.rope.scaling.type", "linear");
	refuse(&w, PFX_E_FORMAT, "rope.scaling.factor' is missing or 0");
	w = tiny("llama");
	pfx_gw_f32(&w, "llama.rope.scaling.factor", -2.0f);
	refuse(&w, PFX_E_FORMAT, "rope.scaling.factor' is missing or -2");
	w = tiny("llama");
	pfx_gw_str(&w, "llama.rope.scaling.type", "yarn");
	pfx_gw_f32(&w, "llama.rope.scaling.factor", 2.0f);
	pfx_gw_f32(&w, "llama.rope.scaling.yarn_beta_fast", NAN);
	refuse(&w, PFX_E_FORMAT, "of YaRN are out of range");
	w = tiny("llama");
	pfx_gw_tensor(&w, "rope_freqs.weight", PFX_F32, 1, (uint64_t[]){ 2 }, "abcdefgh", 8);
	refuse(&w, PFX_E_FORMAT,
		"'rope_freqs.weight' has another type or shape, expected F32 [16]");
	w = tiny("llama");
	pfx_gw_tensor(&w, "rope_freqs.weight", PFX_F32, 1, (uint64_t[]){ 16 }, (char[64]){ 0 }, 64);
	refuse(&w, PFX_E_FORMAT, "'rope_freqs.weight' has 0 at 0, expected a positive number");
}

static void test_tensors(void)
{
	static const char *const needed[] = { "token_embd.weight", "output_norm.weight",
		"blk.0.attn_k.weight", "blk.0.attn_output.weight", "blk.0.ffn_down.weight",
		"blk.0.attn_v.bias", "blk.0.ffn_norm.weight" };
	char words[80];
	struct pfx_gw w;

	for (size_t i = 0; i < sizeof(needed) / sizeof(needed[0]); i++) {
		w = tiny("qwen2");
		rename_in(&w.infos, needed[i], NULL);
		snprintf(words, sizeof(words), "tensor '%s' is missing", needed[i]);
		refuse(&w, PFX_E_FORMAT, words);
	}
	w = tiny("qwen3");
	rename_in(&w.infos, "blk.0.attn_k_norm.weight", NULL);
	refuse(&w, PFX_E_FORMAT, "tensor 'blk.0.attn_k_norm.weight' is missing");
	w = tiny("llama");
	pfx_gw_tensor(&w, "blk.0.attn_output.bias", PFX_F32, 1, (uint64_t[]){ 2 }, "abcdefgh", 8);
	refuse(&w, PFX_E_UNSUPPORTED,
		"tensor 'blk.0.attn_output.bias' is not part of a llama model");
}

static void test_opts(void)
{
	struct pfx_model_opts o = plain;
	struct pfx_gw w = tiny("llama");
	char err[400];

	is_int(try(&w, &o, err, sizeof(err)), 0, "the model as it is opens");
	o.kv_bytes_max = 1000;
	is_int(try(&w, &o, err, sizeof(err)), -EINVAL, "memory for less than a block");
	ok(strstr(err, "limited to 1000 bytes, expected at least the 4096") != NULL, "in words: %s",
		err);
	o = plain;
	o.block_tokens = 48;
	is_int(try(&w, &o, err, sizeof(err)), -EINVAL, "an odd block size");
	o = plain;
	o.rows_max = 0;
	is_int(try(&w, &o, err, sizeof(err)), -EINVAL, "no rows");
	o = plain;
	o.backend = "abacus";
	ok(try(&w, &o, err, sizeof(err)) < 0 && strstr(err, "abacus") != NULL, "a backend: %s",
		err);
	o = plain;
	o.kernels = "abacus";
	ok(try(&w, &o, err, sizeof(err)) < 0 && strstr(err, "abacus") != NULL, "kernels: %s", err);
	pfx_gw_free(&w);
}

/* Whatever allocation fails, opening ends in an error and leaves nothing behind. */
static void test_no_memory(void)
{
	struct pfx_gw w = tiny("qwen2");
	struct pfx_buf image = PFX_BUF_INIT;
	uint64_t live;
	int failed = 0, opened = 0;

	pfx_gw_image(&w, &image);
	pfx_gw_free(&w);
	if (pfx_memfile_set(&file, image.data, image.len) != 0) {
		printf("Bail out! cannot write a test file\n");
		exit(1);
	}
	live = pfx_alloc_live();
	for (uint64_t seed = 0; seed < 200; seed++) {
		struct pfx_gguf *g = NULL;
		struct pfx_model *m = NULL;
		char err[400] = "";
		pfx_alloc_fail(seed, 40);
		int rc = pfx_gguf_open(&g, file.path, err, sizeof(err));
		rc = rc == 0 ? pfx_model_open(&m, g, &plain, err, sizeof(err)) : rc;
		pfx_alloc_fail(0, 0);
		failed += rc < 0 && err[0] != '\0';
		opened += rc == 0;
		pfx_model_close(m);
		pfx_gguf_close(g);
	}
	is_int(failed + opened, 200, "failing memory: %d opened, %d refused", opened, failed);
	is_int((long long)pfx_alloc_live(), (long long)live, "nothing leaks");
	pfx_buf_free(&image);
}

int main(void)
{
	if (pfx_memfile_open(&file) != 0) {
		printf("1..0 # SKIP no memfd\n");
		return 0;
	}
	test_keys();
	test_rope_keys();
	test_tensors();
	test_opts();
	test_no_memory();
	pfx_memfile_close(&file);
	return tap_done();
}

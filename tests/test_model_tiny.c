/*
 * Tiny models of each architecture, RoPE scaling and number format against a float32 forward
 * pass in numpy (tests/reference/forward.py). What differs by more than rounding is wrong.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "engine/model.h"
#include "tests/model_util.h"
#include "tests/reference.h"
#include "tests/tap.h"

/*
 * Share of the logits' deviation (about 2.3) that a logit may be off by: f16 KV and the
 * integer products leave 2e-3, while a wrong frequency or a forgotten bias gives over 0.1.
 */
#define OFF_MAX 0.006

static void check_digest(const struct pfx_tiny_opts *tiny, const uint8_t want[16], const char *args)
{
	struct pfx_memfile file;
	struct pfx_buf image = PFX_BUF_INIT;
	struct pfx_gw w = { 0 };
	struct pfx_gguf *g;
	char err[300] = "";
	uint8_t got[16];

	PFX_ASSERT(pfx_memfile_open(&file) == 0);
	pfx_tiny_write(&w, tiny);
	pfx_gw_image(&w, &image);
	PFX_ASSERT(pfx_memfile_set(&file, image.data, image.len) == 0);
	if (ok(pfx_gguf_open(&g, file.path, err, sizeof(err)) == 0, "%s: opens %s", args, err)) {
		pfx_gguf_digest(g, got);
		ok(memcmp(got, want, 16) == 0, "%s: is the file that the reference saw", args);
		pfx_gguf_close(g);
	}
	pfx_gw_free(&w);
	pfx_buf_free(&image);
	pfx_memfile_close(&file);
}

/* The largest difference of a logit, over the reference's own deviation. */
static double difference(const float *got, const float *want, uint32_t n)
{
	double sum = 0.0, squares = 0.0, worst = 0.0;

	for (uint32_t i = 0; i < n; i++) {
		double off = fabs((double)got[i] - (double)want[i]);
		sum += (double)want[i];
		squares += (double)want[i] * (double)want[i];
		worst = off <= worst ? worst : off;
	}
	return worst / sqrt(squares / n - sum / n * (sum / n));
}

static void test_one(struct pfx_ref_file *f)
{
	struct pfx_tiny_opts tiny = { 0 };
	struct pfx_test_model_opts opts = { .rows_max = 128 };
	uint32_t len = pfx_ref_u32(f), n, n_rows, blocks[16], *ids;
	char args[200], copy[200], *save = NULL;
	double worst = 0.0;

	PFX_ASSERT(len < sizeof(args));
	memcpy(args, pfx_ref_take(f, len), len);
	args[len] = '\0';
	strcpy(copy, args);
	for (char *arg = strtok_r(copy, " ", &save); arg != NULL;
		arg = strtok_r(NULL, " ", &save)) {
		PFX_ASSERT(pfx_tiny_parse(&tiny, arg) == 0);
	}
	check_digest(&tiny, pfx_ref_take(f, 16), args);
	n = pfx_ref_u32(f);
	ids = pfx_ref_ids(f, n);
	n_rows = pfx_ref_u32(f);

	struct pfx_model *m = pfx_test_model_tiny(&tiny, &opts);
	float *logits = calloc((size_t)n * PFX_TINY_VOCAB, sizeof(*logits));
	for (uint32_t i = 0; i < 16; i++) {
		blocks[i] = 15 - i;
	}
	struct pfx_test_part part = { ids, 0, n, 0, blocks, 16, logits };
	pfx_test_run(m, &part, 1);
	for (uint32_t i = 0; i < n_rows; i++) {
		uint32_t row = pfx_ref_u32(f);
		float want[PFX_TINY_VOCAB];
		PFX_ASSERT(row < n);
		memcpy(want, pfx_ref_take(f, sizeof(want)), sizeof(want));
		double off =
			difference(logits + (size_t)row * PFX_TINY_VOCAB, want, PFX_TINY_VOCAB);
		worst = off <= worst ? worst : off;
	}
	ok(worst < OFF_MAX, "%s: a logit is off by %.2g deviations at most", args, worst);
	free(ids);
	free(logits);
	pfx_model_close(m);
}

int main(void)
{
	struct pfx_ref_file f;
	uint32_t n;

	pfx_ref_open(&f, "tiny.bin", "PFXT");
	n = pfx_ref_u32(&f);
	for (uint32_t i = 0; i < n; i++) {
		test_one(&f);
	}
	is_int((long long)f.at, (long long)f.n, "all of the file was used");
	pfx_ref_close(&f);
	return tap_done();
}

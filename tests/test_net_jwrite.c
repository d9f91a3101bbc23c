/* JSON by hand: whatever is written, the JSON library reads back the same. */
#include <float.h>
#include <jansson.h>
#include <string.h>

#include "base/rng.h"
#include "base/utf8.h"
#include "net/jwrite.h"
#include "tests/tap.h"

static struct pfx_rng rng;

static json_t *read_back(const struct pfx_buf *b)
{
	return json_loadb(b->data, b->len, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
}

static int string_survives(const char *s, size_t n)
{
	struct pfx_buf b = PFX_BUF_INIT, want = PFX_BUF_INIT;
	json_t *v;
	int good;

	pfx_jw_str(&b, s, n);
	pfx_utf8_clean(&want, s, n, 1);
	v = read_back(&b);
	good = json_is_string(v) && json_string_length(v) == want.len && memchr(b.data, '\n', b.len) == NULL
		&& (want.len == 0 || memcmp(json_string_value(v), want.data, want.len) == 0);
	json_decref(v);
	pfx_buf_free(&b);
	pfx_buf_free(&want);
	return good;
}

static void test_strings(void)
{
	char text[64];
	int bad = 0;

	for (int c = 0; c < 256; c++) {
		text[0] = (char)c;
		bad += !string_survives(text, 1);
	}
	is_int(bad, 0, "every single byte");
	for (int i = 0; i < 20000; i++) {
		size_t n = pfx_rng_below(&rng, sizeof(text));

		for (size_t k = 0; k < n; k++) {
			uint64_t what = pfx_rng_below(&rng, 8);

			text[k] = (char)(what == 0 ? pfx_rng_below(&rng, 32) : what == 1
				? 128 + pfx_rng_below(&rng, 128) : 32 + pfx_rng_below(&rng, 95));
			if (what == 2 && k + 4 < n) {
				k += (size_t)pfx_utf8_put((uint32_t)(0x80 + pfx_rng_below(&rng, 0xd000)), text + k)
					- 1;
			}
		}
		bad += !string_survives(text, n);
	}
	is_int(bad, 0, "random strings");
	ok(string_survives(NULL, 0), "nothing");
}

static int float_survives(float x)
{
	struct pfx_buf b = PFX_BUF_INIT;
	json_t *v;
	int good;

	pfx_jw_real(&b, x);
	v = read_back(&b);
	good = json_is_number(v) && (float)json_number_value(v) == x && b.len <= 18;
	if (!good) {
		printf("#   %a became %s\n", (double)x, b.data);
	}
	json_decref(v);
	pfx_buf_free(&b);
	return good;
}

static void test_reals(void)
{
	static const float some[] = { 0, -0.0f, 1, -1, 0.1f, -0.1f, 9.9999999f, 0.99999999f, 1e-4f, 9.9e-5f,
		1e8f, 99999999.0f, 123456.789f, -20.5f, FLT_MAX, -FLT_MAX, FLT_MIN, 1.4e-45f, 16777216.0f };
	int bad = 0;

	for (size_t i = 0; i < sizeof(some) / sizeof(some[0]); i++) {
		bad += !float_survives(some[i]);
	}
	for (int i = 0; i < 100000 && bad < 10; i++) {
		uint32_t bits = (uint32_t)pfx_rng_next(&rng);
		float x;

		memcpy(&x, &bits, sizeof(x));
		/* Any float, and those that log-probabilities are. */
		bad += !isfinite(x) ? 0 : !float_survives(x);
		bad += !float_survives((float)(-30 * pfx_rng_double(&rng)));
	}
	is_int(bad, 0, "floats come back bit for bit");
}

static void is_text(struct pfx_buf *b, const char *want)
{
	if (!ok(b->data != NULL && strcmp(b->data, want) == 0, "%s", want)) {
		printf("#   got %s\n", b->data);
	}
	pfx_buf_free(b);
}

static void test_forms(void)
{
	struct pfx_buf b = PFX_BUF_INIT;

	pfx_jw_real(&b, -0.1);
	is_text(&b, "-0.1");
	pfx_jw_real(&b, 0);
	is_text(&b, "0.0");
	pfx_jw_real(&b, 12);
	is_text(&b, "12.0");
	pfx_jw_real(&b, (double)NAN);
	is_text(&b, "null");
	pfx_jw_real(&b, -(double)INFINITY);
	is_text(&b, "-3.40282347e+38");
	pfx_jw_ms(&b, 10.4);
	is_text(&b, "10.4");
	pfx_jw_ms(&b, 0.0006);
	is_text(&b, "0.001");
	pfx_jw_ms(&b, 88);
	is_text(&b, "88.0");
	pfx_jw_ms(&b, 123456.7891);
	is_text(&b, "123456.789");
	pfx_jw_ms(&b, -1);
	is_text(&b, "0.0");
	pfx_jw_hex64(&b, 0xabcdef0123456789u);
	is_text(&b, "\"abcdef0123456789\"");
	pfx_jw_hex64(&b, 0);
	is_text(&b, "\"0000000000000000\"");
	pfx_jw_i64(&b, INT64_MIN);
	is_text(&b, "-9223372036854775808");
	pfx_jw_u64(&b, UINT64_MAX);
	is_text(&b, "18446744073709551615");
}

int main(void)
{
	const char *given = getenv("PFX_SEED");
	uint64_t seed = given != NULL ? strtoull(given, NULL, 10) : pfx_rng_entropy();

	printf("# seed %llu\n", (unsigned long long)seed);
	rng.state = seed;
	test_strings();
	test_reals();
	test_forms();
	return tap_done();
}

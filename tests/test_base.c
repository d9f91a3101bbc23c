/* base/: what the rest leans on without looking. */
#include <errno.h>
#include <stdint.h>
#include <string.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/error.h"
#include "base/list.h"
#include "base/log.h"
#include "base/rng.h"
#include "base/utf8.h"
#include "tests/tap.h"

static void test_utf8(void)
{
	static const struct {
		const char *in;
		size_t n;
		int want;
	} cases[] = {
		{ "a", 1, 1 }, { "\xc3\xa9", 2, 2 }, { "\xe2\x82\xac", 3, 3 },
		{ "\xf0\x9f\x98\x80", 4, 4 }, { "\xf0\x9f\x98", 3, 0 }, { "\xc3", 1, 0 },
		{ "\xc0\x80", 2, -1 }, { "\xe0\x80\x80", 3, -1 }, { "\xed\xa0\x80", 3, -1 },
		{ "\xf4\x90\x80\x80", 4, -1 }, { "\xff", 1, -1 }, { "\x80", 1, -1 },
		{ "\xe2\x82(", 3, -2 }, { "\xf0\x9f\x98(", 4, -3 },
	};
	struct pfx_buf b = PFX_BUF_INIT;
	char enc[4];
	uint32_t cp;
	int bad = 0;

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		is_int(pfx_utf8_next(cases[i].in, cases[i].n, NULL), cases[i].want, "utf8 case %zu", i);
	}
	for (uint32_t c = 0; c <= 0x10ffff; c++) {
		if (c >= 0xd800 && c < 0xe000) {
			continue;
		}
		int n = pfx_utf8_put(c, enc);
		bad += pfx_utf8_next(enc, (size_t)n, &cp) != n || cp != c;
	}
	is_int(bad, 0, "every scalar value survives a round trip");
	is_int((int)pfx_utf8_clean(&b, "a\xff" "b\xe2\x82", 5, 0), 3, "an incomplete end is kept back");
	ok(strcmp(b.data, "a\xef\xbf\xbd" "b") == 0, "bad bytes become U+FFFD");
	pfx_buf_reset(&b);
	is_int((int)pfx_utf8_clean(&b, "\xe2\x82", 2, 1), 2, "at the end it is used up");
	ok(strcmp(b.data, "\xef\xbf\xbd") == 0, "and becomes one U+FFFD");
	is_int((long long)pfx_utf8_valid_len("abcdefghij\xff", 11), 10, "valid length past the fast path");
	pfx_buf_free(&b);
}

static void test_alloc(void)
{
	uint64_t before = pfx_alloc_live();
	struct pfx_buf b = PFX_BUF_INIT;
	int failed = 0;

	for (int i = 0; i < 100; i++) {
		pfx_buf_addf(&b, "%d,", i);
	}
	is_int((long long)b.len, 290, "buffer grows");
	pfx_buf_free(&b);
	ok(pfx_calloc(SIZE_MAX / 2, 4) == NULL, "an overflowing product is refused");
	pfx_alloc_fail(7, 4);
	for (int i = 0; i < 1000; i++) {
		void *p = pfx_malloc(8);
		failed += p == NULL;
		pfx_free(p);
	}
	pfx_alloc_fail(0, 0);
	ok(failed > 150 && failed < 350, "about one in four fails when asked to (%d)", failed);
	is_int((long long)pfx_alloc_live(), (long long)before, "nothing is left");
}

static void test_rest(void)
{
	struct pfx_rng r = { 1 };
	struct pfx_list head, a, c;
	enum pfx_log_level level;
	char err[32];
	int n = 0;

	ok(pfx_rng_mix(1, 0) != pfx_rng_mix(2, 0) && pfx_rng_mix(1, 5) == pfx_rng_mix(1, 5),
		"rng is indexed");
	ok(pfx_rng_below(&r, 10) < 10 && pfx_rng_double(&r) < 1.0, "rng ranges");
	pfx_list_init(&head);
	pfx_list_push_back(&head, &a);
	pfx_list_push_back(&head, &c);
	pfx_list_for_safe(it, &head) {
		pfx_list_remove(it);
		n++;
	}
	ok(n == 2 && pfx_list_empty(&head), "list");
	is_int(pfx_fail(-ENOMEM, err, sizeof(err), "%s", "a sentence that is far longer than its room"),
		-ENOMEM, "pfx_fail returns its code");
	is_int((long long)strlen(err), 31, "and cuts its sentence");
	ok(strcmp(pfx_strerror(-ENOENT), strerror(ENOENT)) == 0, "errno texts");
	is_int(pfx_log_parse_level("loud", &level), -EINVAL, "unknown level");
}

int main(void)
{
	test_utf8();
	test_alloc();
	test_rest();
	return tap_done();
}

/*
 * Request lines at random: built from pieces, then mutated, each against the JSON library
 * (tests/fuzz_proto.c holds what must hold), and again with memory that fails.
 */
#include <jansson.h>
#include <string.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/rng.h"
#include "base/utf8.h"
#include "net/proto.h"
#include "tests/fuzz.h"
#include "tests/tap.h"

static struct pfx_rng rng;

static uint32_t below(uint32_t n)
{
	return (uint32_t)pfx_rng_below(&rng, n);
}

static const char *pick(const char *const *list, size_t n)
{
	return list[below((uint32_t)n)];
}

#define PICK(list) pick(list, sizeof(list) / sizeof(list[0]))

static void put_char(struct pfx_buf *b)
{
	static const char *const odd[] = { "\\n", "\\\"", "\\\\", "\\u0000", "\\u00e9", "\\ud83d\\ude00",
		"\\ud83d", "\\udc00", "\\x", "\\/", "\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x98\x80", "\xff",
		"\xc0\x80", "\t", "\\b", "\\f", "\\r", "\\t", "\\u12", "\\uD800\\u0041" };

	if (below(12) == 0) {
		/* The broken ones seldom, so that most texts are good. */
		pfx_buf_adds(b, odd[below(4) == 0 ? below(sizeof(odd) / sizeof(odd[0])) : below(6)]);
	} else {
		pfx_buf_addc(b, (char)(' ' + below(95)));
		if (b->data[b->len - 1] == '"' || b->data[b->len - 1] == '\\') {
			b->data[b->len - 1] = 'q';
		}
	}
}

static void put_string(struct pfx_buf *b)
{
	pfx_buf_addc(b, '"');
	for (uint32_t n = below(3) ? below(200) : below(5); n > 0; n--) {
		put_char(b);
	}
	pfx_buf_addc(b, '"');
}

static void put_ids(struct pfx_buf *b)
{
	static const char *const odd[] = { "-1", "1.0", "4294967295", "4294967296", "01", "1e2", "\"1\"",
		"null", "99999999999999999999", "[]", "0" };

	pfx_buf_addc(b, '[');
	for (uint32_t i = 0, n = below(80); i < n; i++) {
		pfx_buf_adds(b, i == 0 ? "" : below(9) ? "," : " , ");
		if (below(60) == 0) {
			pfx_buf_adds(b, PICK(odd));
		} else {
			pfx_buf_addf(b, "%u", below(50000));
		}
	}
	pfx_buf_adds(b, below(100) == 0 ? ",]" : "]");
}

static void put_value(struct pfx_buf *b, const char *key)
{
	static const char *const any[] = { "1", "-1", "0", "true", "false", "null", "1.5", "1e9", "{}",
		"[]", "\"x\"", "[[[1]]]", "{\"a\":{\"b\":[1,\"]\"]}}", "\"}\"", "20", "\"generate\"" };

	if (strcmp(key, "tokens") == 0 && below(8)) {
		put_ids(b);
	} else if ((strcmp(key, "prompt") == 0 || strcmp(key, "text") == 0) && below(8)) {
		put_string(b);
	} else {
		pfx_buf_adds(b, PICK(any));
	}
}

static void put_line(struct pfx_buf *b)
{
	static const char *const ops[] = { "generate", "warm", "score", "tokenize", "detokenize", "render",
		"cancel", "ping", "stats", "check", "flush", "nonsense" };
	static const char *const keys[] = { "id", "prompt", "text", "tokens", "messages", "max_tokens",
		"temperature", "top_k", "top_p", "min_p", "seed", "stop", "logprobs", "digest", "stream",
		"prompt_bytes", "target", "request", "from", "namespace", "store", "tools", "special", "x",
		"pr\\u006fmpt", "", "prefix", "deadline_ms" };

	pfx_buf_reset(b);
	pfx_buf_addf(b, "{\"op\":\"%s\"", PICK(ops));
	for (uint32_t i = 0, n = below(5); i < n; i++) {
		const char *key = i < 2 && below(2) ? keys[1 + below(3)] : PICK(keys);

		pfx_buf_addf(b, "%s\"%s\"%s", below(9) ? "," : " ,\t", key, below(9) ? ":" : " : ");
		put_value(b, key);
	}
	pfx_buf_addc(b, '}');
}

static void mutate(struct pfx_buf *b)
{
	size_t at = below((uint32_t)b->len);

	switch (below(4)) {
	case 0:
		b->data[at] = (char)below(256);
		break;
	case 1:
		b->len = at;
		break;
	case 2:
		memmove(b->data + at, b->data + at + 1, b->len - at - 1);
		b->len--;
		break;
	default:
		b->data[at] ^= (char)(1u << below(8));
		break;
	}
}

/* In memory of exactly that size, so that ASan sees a read behind its end. */
static void feed(const struct pfx_buf *b)
{
	uint8_t *exact = malloc(b->len > 0 ? b->len : 1);

	memcpy(exact, b->data, b->len);
	LLVMFuzzerTestOneInput(exact, b->len);
	free(exact);
}

static void test_random(int n)
{
	struct pfx_buf b = PFX_BUF_INIT;
	int good = 0, bad = 0;
	struct pfx_msg m;

	for (int i = 0; i < n; i++) {
		put_line(&b);
		for (uint32_t k = below(3) ? 0 : 1 + below(3); k > 0 && b.len > 1; k--) {
			mutate(&b);
		}
		feed(&b);
		pfx_proto_parse(&m, b.data, b.len, 4096);
		good += !m.bad;
		bad += m.bad;
		pfx_msg_free(&m);
	}
	pfx_buf_free(&b);
	ok(good > n / 20 && bad > n / 20, "%d random lines: %d good, %d bad", n, good, bad);
}

/*
 * Our own allocations fail, not the JSON library's: it saves bytes of a string without looking
 * whether that worked, and then meets an assertion of its own.
 */
static void test_no_memory(int n)
{
	struct pfx_buf b = PFX_BUF_INIT;
	uint64_t live;
	struct pfx_msg m;
	int internal = 0;

	for (int i = 0; i < n; i++) {
		pfx_alloc_fail(0, 0);
		put_line(&b);
		live = pfx_alloc_live();
		pfx_alloc_fail(pfx_rng_next(&rng), 1 + below(40));
		pfx_proto_parse(&m, b.data, b.len, 4096);
		if (m.has_prompt_bytes) {
			pfx_proto_attach(&m, "abc", 3);
		}
		internal += m.bad && m.fault == PFX_FAULT_INTERNAL;
		if ((m.bad && m.job != NULL) || (!m.bad && m.op >= PFX_OP_GENERATE && m.job == NULL)) {
			ok(0, "a message is either bad or whole");
		}
		pfx_msg_free(&m);
		if (pfx_alloc_live() != live) {
			ok(0, "nothing is lost: %.*s", (int)b.len, b.data);
			break;
		}
	}
	pfx_alloc_fail(0, 0);
	pfx_buf_free(&b);
	ok(internal > n / 200, "%d lines with memory that fails: %d told so", n, internal);
}

int main(void)
{
	const char *given = getenv("PFX_SEED");
	uint64_t seed = given != NULL ? strtoull(given, NULL, 10) : pfx_rng_entropy();

	printf("# seed %llu\n", (unsigned long long)seed);
	rng.state = seed;
	json_object_seed(1);
	test_random(40000);
	test_no_memory(20000);
	return tap_done();
}

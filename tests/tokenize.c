/*
 * tokenize [-s] [-t] [-r] [-d] MODEL.gguf < bytes > ids
 *
 * What tests/reference/compare_tokenizer.py compares, and a benchmark.
 *   -s  control tokens are read too (the whole text is trusted)
 *   -r  stdin holds records: a length of 4 bytes, little-endian, then so many bytes; each
 *       gives a line of its own
 *   -d  the line goes on with a tab and the ids' text in hex
 *   -t  no ids but the best time of several runs and the speed
 */

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "engine/gguf.h"
#include "engine/tokenizer.h"

static int special, timed, records, detok;

static void read_all(struct pfx_buf *in)
{
	char chunk[65536];
	size_t n;

	while ((n = fread(chunk, 1, sizeof(chunk), stdin)) > 0) {
		pfx_buf_add(in, chunk, n);
	}
}

static int encode(const struct pfx_tokenizer *t, const char *s, size_t n, struct pfx_ids *ids)
{
	struct pfx_span all = { 0, n };

	ids->n = 0;
	return pfx_tokenizer_encode(t, s, n, &all, special, ids);
}

static void print_text(const struct pfx_tokenizer *t, const struct pfx_ids *ids)
{
	struct pfx_detok d = PFX_DETOK_INIT;
	struct pfx_buf text = PFX_BUF_INIT;

	for (size_t i = 0; i < ids->n; i++) {
		pfx_detok_push(t, &d, ids->v[i], &text);
	}
	pfx_detok_end(t, &d, &text);
	putchar('\t');
	for (size_t i = 0; i < text.len; i++) {
		printf("%02x", (unsigned char)text.data[i]);
	}
	pfx_buf_free(&text);
}

static int print_ids(const struct pfx_tokenizer *t, const char *s, size_t n, struct pfx_ids *ids)
{
	int rc = encode(t, s, n, ids);

	for (size_t i = 0; i < ids->n && rc == 0; i++) {
		printf("%s%u", i == 0 ? "" : " ", ids->v[i]);
	}
	if (detok && rc == 0) {
		print_text(t, ids);
	}
	putchar('\n');
	return rc;
}

static int print_records(const struct pfx_tokenizer *t, const struct pfx_buf *in,
	struct pfx_ids *ids)
{
	size_t at = 0;
	int rc = 0;

	while (in->len - at >= 4 && rc == 0) {
		const unsigned char *p = (const unsigned char *)in->data + at;
		size_t n = p[0] | p[1] << 8 | p[2] << 16 | (size_t)p[3] << 24;

		if (n > in->len - at - 4) {
			return -1;
		}
		rc = print_ids(t, in->data + at + 4, n, ids);
		at += 4 + n;
	}
	return rc;
}

static int print_speed(const struct pfx_tokenizer *t, const struct pfx_buf *in, struct pfx_ids *ids)
{
	uint64_t best = UINT64_MAX, first = 0;
	int rc = 0;

	for (int run = 0; run < 7 && rc == 0; run++) {
		uint64_t start = pfx_clock_ns(), took;

		rc = encode(t, in->data, in->len, ids);
		took = pfx_clock_ns() - start;
		first = run == 0 ? took : first;
		best = took < best ? took : best;
	}
	printf("%zu bytes, %zu tokens, first %.1f ms, best %.1f ms, %.1f MB/s\n", in->len, ids->n,
		pfx_ns_to_ms(first), pfx_ns_to_ms(best), (double)in->len * 1e3 / (double)best);
	return rc;
}

int main(int argc, char **argv)
{
	struct pfx_buf in = PFX_BUF_INIT;
	struct pfx_ids ids = { 0 };
	struct pfx_tokenizer *t;
	struct pfx_gguf *g;
	char err[512];
	int opt, rc;

	while ((opt = getopt(argc, argv, "srdt")) != -1) {
		special |= opt == 's';
		records |= opt == 'r';
		detok |= opt == 'd';
		timed |= opt == 't';
	}
	if (optind + 1 != argc) {
		fprintf(stderr, "usage: tokenize [-s] [-r] [-d] [-t] MODEL.gguf\n");
		return 2;
	}
	if (pfx_gguf_open(&g, argv[optind], err, sizeof(err)) != 0 ||
		pfx_tokenizer_open(&t, g, err, sizeof(err)) != 0) {
		fprintf(stderr, "%s\n", err);
		return 1;
	}
	read_all(&in);
	rc = timed ? print_speed(t, &in, &ids) : records ? print_records(t, &in, &ids) :
		print_ids(t, in.data, in.len, &ids);
	pfx_buf_free(&in);
	pfx_ids_free(&ids);
	pfx_tokenizer_close(t);
	pfx_gguf_close(g);
	return rc != 0;
}

/* What a request line and a token line cost, best of several runs. Prints, judges nothing. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/clock.h"
#include "net/proto.h"
#include "net/reply.h"

#define RUNS 15

static void bench_line(const char *name, const struct pfx_buf *line)
{
	uint64_t best = UINT64_MAX;
	struct pfx_msg m;

	for (int i = 0; i < RUNS; i++) {
		uint64_t t = pfx_clock_ns();

		pfx_proto_parse(&m, line->data, line->len, 16 << 20);
		t = pfx_clock_ns() - t;
		best = t < best ? t : best;
		pfx_msg_free(&m);
	}
	printf("%-34s %8zu bytes %9.1f us %8.0f MB/s\n", name, line->len, (double)best / 1e3,
		(double)line->len * 1e3 / (double)best);
}

static void bench_lines(void)
{
	struct pfx_buf b = PFX_BUF_INIT;

	pfx_buf_adds(&b, "{\"op\":\"ping\",\"id\":1}");
	bench_line("ping", &b);
	pfx_buf_reset(&b);
	pfx_buf_adds(&b, "{\"op\":\"generate\",\"id\":1,\"tokens\":[1");
	for (int i = 1; i < 8000; i++) {
		pfx_buf_addf(&b, ",%d", i * 37 % 49152);
	}
	pfx_buf_adds(&b, "]}");
	bench_line("8,000 token ids", &b);
	/* Under a key that is not lifted: the library's own speed. */
	memcpy(strstr(b.data, "tokens"), "tokenz", 6);
	bench_line("... if the library read them", &b);
	pfx_buf_reset(&b);
	pfx_buf_adds(&b, "{\"op\":\"generate\",\"id\":1,\"prompt\":\"");
	for (int i = 0; i < 4000; i++) {
		pfx_buf_adds(&b, "some words\\n");
	}
	pfx_buf_adds(&b, "\"}");
	bench_line("a prompt of 44 KB", &b);
	pfx_buf_reset(&b);
	pfx_buf_adds(&b, "{\"op\":\"generate\",\"id\":1,\"messages\":[{\"role\":\"user\",\"content\":\"");
	for (int i = 0; i < 4000; i++) {
		pfx_buf_adds(&b, "some words\\n");
	}
	pfx_buf_adds(&b, "\"}]}");
	bench_line("a message of 44 KB", &b);
	pfx_buf_free(&b);
}

static void bench_tokens(const char *name, uint32_t n_top)
{
	static const char line[] = "{\"op\":\"generate\",\"id\":1,\"prompt\":\"a\"}";
	static struct pfx_top top[20];
	struct pfx_event ev = { .kind = PFX_EVENT_TOKEN, .text = " hello", .text_len = 6, .token = 19556,
		.has_logprob = n_top > 0, .logprob = -1.2345678f, .top = top, .n_top = n_top };
	struct pfx_buf out = PFX_BUF_INIT;
	uint64_t best = UINT64_MAX;
	struct pfx_reply r;
	struct pfx_msg m;

	for (uint32_t i = 0; i < n_top; i++) {
		top[i] = (struct pfx_top){ 1000 + i, -1.2345678f - (float)i };
	}
	pfx_proto_parse(&m, line, sizeof(line) - 1, 1024);
	if (pfx_reply_init(&r, &m) < 0) {
		abort();
	}
	for (int i = 0; i < RUNS; i++) {
		uint64_t t = pfx_clock_ns();

		for (int k = 0; k < 1000; k++) {
			pfx_buf_reset(&out);
			pfx_reply_event(&r, &ev, NULL, &out);
		}
		t = pfx_clock_ns() - t;
		best = t < best ? t : best;
	}
	printf("%-34s %8zu bytes %9.3f us\n", name, out.len, (double)best / 1e6);
	pfx_reply_free(&r);
	pfx_msg_free(&m);
	pfx_buf_free(&out);
}

int main(void)
{
	bench_lines();
	bench_tokens("a token line", 0);
	bench_tokens("a token line with 5 best", 5);
	bench_tokens("a token line with 20 best", 20);
	return 0;
}

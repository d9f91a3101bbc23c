/* The context of a run: its arena, its bounds, its first error. */

#include "engine/jinja_value.h"

#include <errno.h>
#include <stdalign.h>
#include <string.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/error.h"
#include "base/rng.h"
#include "engine/jinja_str.h"

/*
 * Small blocks are cut from shared chunks. A big one has a chunk of its own, so that a
 * string that grows can be moved by realloc and leaves no old copies behind.
 */
#define CHUNK_BYTES ((size_t)64 << 10)
#define BIG_BYTES ((size_t)16 << 10)

struct pfx_jchunk {
	struct pfx_jchunk *next, *prev;
	size_t used, cap;
	alignas(16) char data[];
};

void pfx_j_begin(struct pfx_jctx *c, size_t memory_max, size_t text_max, uint64_t steps_max,
	char *err, size_t errlen)
{
	memset(c, 0, sizeof(*c));
	c->memory_max = memory_max;
	c->text_max = text_max;
	c->steps_max = steps_max;
	c->err = err;
	c->errlen = errlen;
	c->seed = pfx_rng_entropy();
}

static void free_chunks(struct pfx_jchunk *chunk)
{
	struct pfx_jchunk *next;

	for (; chunk != NULL; chunk = next) {
		next = chunk->next;
		pfx_free(chunk);
	}
}

void pfx_j_end(struct pfx_jctx *c)
{
	free_chunks(c->small);
	free_chunks(c->big);
	c->small = c->big = NULL;
}

static int count_memory(struct pfx_jctx *c, size_t n)
{
	if (n > c->memory_max - c->memory) {
		pfx_j_limit(c, "memory");
		return 0;
	}
	c->memory += n;
	return 1;
}

static void fail_memory(struct pfx_jctx *c)
{
	if (c->rc == 0) {
		c->rc = pfx_fail(-ENOMEM, c->err, c->errlen, "out of memory");
	}
}

static struct pfx_jchunk *new_chunk(struct pfx_jctx *c, struct pfx_jchunk **list, size_t cap)
{
	struct pfx_jchunk *chunk;

	if (!count_memory(c, cap)) {
		return NULL;
	}
	chunk = pfx_malloc(sizeof(*chunk) + cap);
	if (chunk == NULL) {
		fail_memory(c);
		return NULL;
	}
	*chunk = (struct pfx_jchunk){ .next = *list, .cap = cap };
	if (*list != NULL) {
		(*list)->prev = chunk;
	}
	*list = chunk;
	return chunk;
}

void *pfx_j_alloc(struct pfx_jctx *c, size_t n)
{
	struct pfx_jchunk *chunk = c->small;
	void *p;

	if (c->rc != 0) {
		return NULL;
	}
	if (n > c->memory_max) {
		pfx_j_limit(c, "memory");
		return NULL;
	}
	n = (n + 15) & ~(size_t)15;
	if (n >= BIG_BYTES) {
		chunk = new_chunk(c, &c->big, n);
		return chunk == NULL ? NULL : chunk->data;
	}
	if (chunk == NULL || n > chunk->cap - chunk->used) {
		chunk = new_chunk(c, &c->small, CHUNK_BYTES);
		if (chunk == NULL) {
			return NULL;
		}
	}
	p = chunk->data + chunk->used;
	chunk->used += n;
	return p;
}

static void *grow_big(struct pfx_jctx *c, void *p, size_t n)
{
	struct pfx_jchunk *chunk = (struct pfx_jchunk *)((char *)p - offsetof(struct pfx_jchunk, data));
	struct pfx_jchunk *moved;

	n = (n + 15) & ~(size_t)15;
	if (!count_memory(c, n - chunk->cap)) {
		return NULL;
	}
	moved = pfx_realloc(chunk, sizeof(*chunk) + n);
	if (moved == NULL) {
		fail_memory(c);
		return NULL;
	}
	moved->cap = n;
	if (moved->prev != NULL) {
		moved->prev->next = moved;
	} else {
		c->big = moved;
	}
	if (moved->next != NULL) {
		moved->next->prev = moved;
	}
	return moved->data;
}

void *pfx_j_grow(struct pfx_jctx *c, void *p, size_t old, size_t n)
{
	void *to;

	if (c->rc != 0) {
		return NULL;
	}
	if (n > c->memory_max) {
		pfx_j_limit(c, "memory");
		return NULL;
	}
	if (p != NULL && ((old + 15) & ~(size_t)15) >= BIG_BYTES) {
		return grow_big(c, p, n);
	}
	to = pfx_j_alloc(c, n);
	if (to != NULL && old > 0) {
		memcpy(to, p, old);
	}
	return to;
}

void pfx_j_fail(struct pfx_jctx *c, const char *fmt, ...)
{
	struct pfx_buf words = PFX_BUF_INIT;
	va_list ap;

	if (c->rc != 0) {
		return;
	}
	va_start(ap, fmt);
	pfx_buf_vaddf(&words, fmt, ap);
	va_end(ap);
	c->rc = pfx_fail(PFX_E_TEMPLATE, c->err, c->errlen, "template line %u: %s", c->line,
		words.data == NULL || words.oom ? "error" : words.data);
	pfx_buf_free(&words);
}

void pfx_j_raise(struct pfx_jctx *c, const struct pfx_jstr *words)
{
	if (c->rc == 0 && words != NULL) {
		c->rc = pfx_fail(PFX_E_TEMPLATE, c->err, c->errlen, "%.*s",
			(int)(words->n < 4096 ? words->n : 4096), words->s);
	}
}

void pfx_j_limit(struct pfx_jctx *c, const char *what)
{
	if (c->rc == 0) {
		c->rc = pfx_fail(PFX_E_LIMIT, c->err, c->errlen,
			"template line %u: over the bound on %s", c->line, what);
	}
}

int pfx_j_step(struct pfx_jctx *c, uint64_t n)
{
	if (c->rc != 0) {
		return 0;
	}
	if (n > c->steps_max - c->steps) {
		c->steps = c->steps_max;
		pfx_j_limit(c, "steps");
		return 0;
	}
	c->steps += n;
	return 1;
}

int pfx_j_enter(struct pfx_jctx *c)
{
	if (c->depth >= PFX_J_DEPTH_MAX) {
		pfx_j_limit(c, "depth");
		return 0;
	}
	if (!pfx_j_step(c, 1)) {
		return 0;
	}
	c->depth++;
	return 1;
}

void pfx_j_leave(struct pfx_jctx *c)
{
	c->depth--;
}

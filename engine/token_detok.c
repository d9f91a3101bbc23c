#include "engine/token_priv.h"

#include <string.h>

#include "base/utf8.h"

/* Gives out of d->pending what is decided, as characters. */
static void settle(struct pfx_detok *d, struct pfx_buf *out, int last)
{
	size_t used = pfx_utf8_clean(out, d->pending, d->n_pending, last);

	d->n_pending -= (uint32_t)used;
	memmove(d->pending, d->pending + used, d->n_pending);
}

void pfx_detok_push(const struct pfx_tokenizer *t, struct pfx_detok *d, uint32_t id,
	struct pfx_buf *out)
{
	const char *s;
	size_t n, used;

	if (id >= t->n_vocab) {
		return;
	}
	s = t->text[id].s;
	n = t->text[id].n;
	if (t->add_space_prefix && !d->started && t->type[id] == PFX_TOKEN_NORMAL && n > 0 &&
		s[0] == ' ') {
		s++;
		n--;
	}
	d->started = 1;
	while (d->n_pending > 0 && n > 0) {
		d->pending[d->n_pending++] = *s++;
		n--;
		settle(d, out, 0);
	}
	used = pfx_utf8_clean(out, s, n, 0);
	if (used < n) {
		memcpy(d->pending, s + used, n - used);
		d->n_pending = (uint32_t)(n - used);
	}
}

void pfx_detok_end(const struct pfx_tokenizer *t, struct pfx_detok *d, struct pfx_buf *out)
{
	settle(d, out, 1);
	d->started = 0;
}

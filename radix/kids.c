#include "radix/kids.h"

#include "base/assert.h"

static uint32_t least(uint32_t a, uint32_t b)
{
	return a < b ? a : b;
}

int pfx_kids_compare(const uint32_t *q, uint32_t n, const struct pfx_node *x,
	uint32_t block_tokens, uint32_t *common)
{
	uint32_t qn = least(n, block_tokens);
	uint32_t xn = least(x->n, block_tokens);
	uint32_t both = least(qn, xn);
	uint32_t l = pfx_common(x->run, q, both);

	*common = l;
	if (l < both) {
		return q[l] < x->run[l] ? -1 : 1;
	}
	return qn < xn ? -1 : qn > xn;
}

/*
 * The first child that begins with q[0..n). They are a row in the order, and x is the one
 * that was met first on the way down: the others are below it.
 */
static struct pfx_node *first_with(struct pfx_node *x, const uint32_t *q, uint32_t n)
{
	struct pfx_node *first = x;
	uint32_t l;

	for (x = x->left; x != NULL;) {
		pfx_kids_compare(q, n, x, n, &l);
		if (l == n) {
			first = x;
			x = x->left;
		} else {
			x = x->right;
		}
	}
	return first;
}

struct pfx_node *pfx_kids_best(const struct pfx_node *parent, const uint32_t *q, uint32_t n,
	uint32_t block_tokens, uint32_t *common)
{
	struct pfx_node *best = NULL;
	struct pfx_node *x = parent->kids;
	uint32_t best_common = 0;

	while (x != NULL) {
		uint32_t l;
		int c = pfx_kids_compare(q, n, x, block_tokens, &l);

		if (l > best_common) {
			best = x;
			best_common = l;
		}
		if (c == 0) {
			break;
		}
		x = c < 0 ? x->left : x->right;
	}
	*common = best_common;
	/* A whole block is one child's alone; less may be shared by a row of them. */
	return best_common == 0 || best_common == block_tokens ? best : first_with(best, q, best_common);
}

/* Where the pointer to x stands: in the node above, or in the parent. */
static struct pfx_node **slot_of(struct pfx_node *parent, struct pfx_node *x)
{
	if (x->up == NULL) {
		return &parent->kids;
	}
	return x->up->left == x ? &x->up->left : &x->up->right;
}

/* Lifts x over the node above it; the order stays. */
static void rotate_up(struct pfx_node *parent, struct pfx_node *x)
{
	struct pfx_node *y = x->up;
	struct pfx_node *middle;

	*slot_of(parent, y) = x;
	if (y->left == x) {
		middle = x->right;
		y->left = middle;
		x->right = y;
	} else {
		middle = x->left;
		y->right = middle;
		x->left = y;
	}
	if (middle != NULL) {
		middle->up = y;
	}
	x->up = y->up;
	y->up = x;
}

void pfx_kids_find(const struct pfx_node *parent, const uint32_t *q, uint32_t n,
	uint32_t block_tokens, struct pfx_kids_place *at)
{
	struct pfx_node *x = parent->kids;

	*at = (struct pfx_kids_place){ 0 };
	while (x != NULL) {
		uint32_t l;
		int c = pfx_kids_compare(q, n, x, block_tokens, &l);

		at->up = x;
		if (c > 0) {
			at->before = x;
			at->in_before = l;
			x = x->right;
			continue;
		}
		at->after = x;
		at->in_after = l;
		if (c == 0) {
			return;
		}
		x = x->left;
	}
}

void pfx_kids_put(struct pfx_node *parent, struct pfx_node *x, const struct pfx_kids_place *at)
{
	struct pfx_node *up = at->up;
	struct pfx_node **slot = up == NULL ? &parent->kids : at->after == up ? &up->left : &up->right;

	PFX_ASSERT(*slot == NULL);
	*slot = x;
	parent->n_kids++;
	x->up = up;
	x->left = x->right = NULL;
	while (x->up != NULL && x->up->prio < x->prio) {
		rotate_up(parent, x);
	}
}

void pfx_kids_remove(struct pfx_node *parent, struct pfx_node *x)
{
	struct pfx_node *below;

	parent->n_kids--;
	while (x->left != NULL && x->right != NULL) {
		rotate_up(parent, x->left->prio > x->right->prio ? x->left : x->right);
	}
	below = x->left != NULL ? x->left : x->right;
	*slot_of(parent, x) = below;
	if (below != NULL) {
		below->up = x->up;
	}
	x->left = x->right = x->up = NULL;
}

void pfx_kids_replace(struct pfx_node *parent, struct pfx_node *x, struct pfx_node *y)
{
	uint32_t prio = y->prio;

	*slot_of(parent, x) = y;
	y->left = x->left;
	y->right = x->right;
	y->up = x->up;
	y->prio = x->prio;
	if (y->left != NULL) {
		y->left->up = y;
	}
	if (y->right != NULL) {
		y->right->up = y;
	}
	x->left = x->right = x->up = NULL;
	x->prio = prio;
}

struct pfx_node *pfx_kids_first(const struct pfx_node *parent)
{
	struct pfx_node *x = parent->kids;

	while (x != NULL && x->left != NULL) {
		x = x->left;
	}
	return x;
}

struct pfx_node *pfx_kids_next(const struct pfx_node *x)
{
	if (x->right != NULL) {
		struct pfx_node *y = x->right;

		while (y->left != NULL) {
			y = y->left;
		}
		return y;
	}
	while (x->up != NULL && x->up->right == x) {
		x = x->up;
	}
	return x->up;
}

int pfx_kids_sound(const struct pfx_node *parent)
{
	uint32_t n = 0;

	if (parent->kids != NULL && parent->kids->up != NULL) {
		return 0;
	}
	for (const struct pfx_node *x = pfx_kids_first(parent); x != NULL; x = pfx_kids_next(x)) {
		const struct pfx_node *below[2] = { x->left, x->right };

		n++;
		for (int i = 0; i < 2; i++) {
			if (below[i] != NULL &&
				(below[i]->up != x || below[i]->prio > x->prio)) {
				return 0;
			}
		}
	}
	return n == parent->n_kids;
}

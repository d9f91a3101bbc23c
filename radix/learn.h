#ifndef PFX_RADIX_LEARN_H
#define PFX_RADIX_LEARN_H

/*
 * How soon, if ever, blocks are used again, learned from what happens, and what a block is
 * worth therefore.
 *
 * Blocks are of a class by a few traits that each have a few values. Time goes by in blocks
 * referred to, and in ticks of a fraction of the cache's size. For each class and age (in ticks
 * since the last use) are counted: block-ticks that blocks spent at that age, whether cached
 * still or gone, and how many were used again at it. Their quotient is the hazard. What all
 * classes together say of an age is a curve with good figures, and a class is that curve times
 * a factor, since few classes see enough uses to have a curve; and the factor of a class that
 * has seen little is the product of what its traits mean in all classes. The worth of a block
 * of some age is the most uses a tick that keeping it for some time brings in (Gittins' index),
 * made to fall with age, so that inside a class the order stays leaf LRU.
 */

#include <stdint.h>

#define PFX_LEARN_CLASSES 128u
#define PFX_LEARN_AGES 64u /* ticks; what is older counts as the last of them */

struct pfx_learn_class {
	double used[PFX_LEARN_AGES];  /* blocks used again, by the age at which they were */
	double spent[PFX_LEARN_AGES]; /* block-ticks, by age */
	uint32_t level; /* of its factor: which of the tables of worths */
	uint32_t waiting[PFX_LEARN_AGES]; /* blocks not used again yet, by tick mod AGES */
	int seen;
};

/* Factors are told apart by a tenth, between a hundredth and a hundred. */
#define PFX_LEARN_LEVELS 97u
#define PFX_LEARN_EVEN (PFX_LEARN_LEVELS / 2) /* the factor 1 */

struct pfx_learn {
	struct pfx_learn_class *classes;
	double (*worth)[PFX_LEARN_AGES + 1]; /* by level; of levels that some class has */
	uint32_t tick, tick_blocks; /* now; blocks referred to in one */
	uint32_t in_tick;           /* so far in this one */
	uint32_t since_worth;       /* blocks referred to since worths were worked out */
};

/* What is known of a block when a request lets it go. */
struct pfx_traits {
	uint32_t uses;  /* so far; > 0 */
	uint32_t reply; /* tokens of the reply of the latest request */
	int known;      /* the request that brought it in began with something known */
	int tail;       /* it was the last of the latest request */
};

uint32_t pfx_learn_class_of(const struct pfx_traits *traits);

/* -ENOMEM; a failed open needs a close too. */
int pfx_learn_open(struct pfx_learn *l, uint32_t n_blocks);
void pfx_learn_close(struct pfx_learn *l);

/* A block of this class was used now, and is not in use any more. */
void pfx_learn_start(struct pfx_learn *l, uint32_t class);
/* One that was started at that tick is used again, or (again = 0) is watched no longer. */
void pfx_learn_end(struct pfx_learn *l, uint32_t class, uint32_t tick, int again);
/* So many blocks were referred to. */
void pfx_learn_advance(struct pfx_learn *l, uint32_t n);

static inline double pfx_learn_worth(const struct pfx_learn *l, uint32_t class, uint32_t tick)
{
	uint32_t age = l->tick - tick;

	return l->worth[l->classes[class].level][age < PFX_LEARN_AGES ? age : PFX_LEARN_AGES];
}

#endif

#include "radix/learn.h"

#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"

#define AGES PFX_LEARN_AGES
#define CLASSES PFX_LEARN_CLASSES

/* The ages end after so many times the cache's size: what comes back later, few could keep. */
#define HORIZON 8u
/* Ticks of less than this would cost more than they tell. */
#define TICK_MIN 4u
/* Worths are worked out after at least so many blocks: it takes some 50 us. */
#define WORTH_EVERY 256u
/* Uses that a class (or a trait) must see before its own factor counts as much as what is
 * believed without. Blocks come back by whole prefixes, so this is not many. */
#define DOUBT 64.0
/* Uses that an age must see before its own hazard counts as much as the mean of all. */
#define DOUBT_AGE 16.0
/* Factors between 1/INDIFFERENT and INDIFFERENT are none: small differences are mostly chance,
 * and acting on them loses to LRU where that is good. */
#define INDIFFERENT 1.3

/* From one level of factors to the next. */
#define STEP 0.1
/* Times that each trait is fitted. */
#define ROUNDS 3u

/* All counts are halved after so many ticks (128 times the cache's size), so that what was
 * learned can be learned anew. */
#define HALVE_EVERY 1024u

/* Traits: how many values each has, and by what a value counts in a class. */
#define TRAITS 4u

static const struct {
	uint32_t n, stride;
} traits[TRAITS] = { { 5, 24 }, { 6, 4 }, { 2, 2 }, { 2, 1 } };

_Static_assert(5 * 24 <= CLASSES, "all classes have a place");

static uint32_t value_of(uint32_t class, uint32_t trait)
{
	return class / traits[trait].stride % traits[trait].n;
}

uint32_t pfx_learn_class_of(const struct pfx_traits *t)
{
	uint32_t use = t->uses <= 2 ? t->uses - (t->uses > 0) : t->uses <= 4 ? 2 : t->uses <= 8 ? 3 : 4;
	uint32_t length = t->reply == 0 ? 0 : (32 - (uint32_t)__builtin_clz(t->reply)) / 2;

	return use * traits[0].stride + (length < 5 ? length : 5) * traits[1].stride +
		(t->known != 0) * traits[2].stride + (t->tail != 0) * traits[3].stride;
}

int pfx_learn_open(struct pfx_learn *l, uint32_t n_blocks)
{
	uint64_t tick = (uint64_t)n_blocks * HORIZON / AGES;

	*l = (struct pfx_learn){
		.classes = pfx_calloc(CLASSES, sizeof(*l->classes)),
		.worth = pfx_calloc(PFX_LEARN_LEVELS, sizeof(*l->worth)),
	};
	if (l->classes == NULL || l->worth == NULL) {
		return -ENOMEM;
	}
	l->tick_blocks = tick > TICK_MIN ? (uint32_t)tick : TICK_MIN;
	for (uint32_t c = 0; c < CLASSES; c++) {
		l->classes[c].level = PFX_LEARN_EVEN;
	}
	for (uint32_t k = 0; k <= AGES; k++) {
		l->worth[PFX_LEARN_EVEN][k] = AGES + 1 - k;
	}
	return 0;
}

void pfx_learn_close(struct pfx_learn *l)
{
	pfx_free(l->classes);
	pfx_free(l->worth);
	l->classes = NULL;
	l->worth = NULL;
}

void pfx_learn_start(struct pfx_learn *l, uint32_t class)
{
	l->classes[class].waiting[l->tick % AGES]++;
	l->classes[class].seen = 1;
}

void pfx_learn_end(struct pfx_learn *l, uint32_t class, uint32_t tick, int again)
{
	uint32_t age = l->tick - tick;

	if (age < AGES) {
		PFX_ASSERT(l->classes[class].waiting[tick % AGES] > 0);
		l->classes[class].waiting[tick % AGES]--;
		l->classes[class].used[age] += again;
	}
}

/* The hazard of each age, all classes taken together. Returns 0 when nothing is known yet. */
static int common_curve(const struct pfx_learn *l, double *curve)
{
	double used[AGES] = { 0 }, spent[AGES] = { 0 }, all_used = 0, all_spent = 0, mean;

	for (uint32_t c = 0; c < CLASSES; c++) {
		for (uint32_t k = 0; l->classes[c].seen && k < AGES; k++) {
			used[k] += l->classes[c].used[k];
			spent[k] += l->classes[c].spent[k];
		}
	}
	for (uint32_t k = 0; k < AGES; k++) {
		all_used += used[k];
		all_spent += spent[k];
	}
	if (all_spent <= 0) {
		return 0;
	}
	mean = (all_used + 1) / (all_spent + 1);
	for (uint32_t k = 0; k < AGES; k++) {
		curve[k] = (used[k] + DOUBT_AGE) / (spent[k] + DOUBT_AGE / mean);
	}
	return 1;
}

/* Uses again of each class, and how many the common curve would have. */
struct sums {
	double used[CLASSES], expected[CLASSES];
	double product[CLASSES]; /* of the factors of a class's traits */
};

static void sum_up(const struct pfx_learn *l, const double *curve, struct sums *s)
{
	for (uint32_t c = 0; c < CLASSES; c++) {
		const struct pfx_learn_class *class = &l->classes[c];

		s->used[c] = s->expected[c] = 0;
		for (uint32_t k = 0; class->seen && k < AGES; k++) {
			s->used[c] += class->used[k];
			s->expected[c] += class->spent[k] * curve[k];
		}
	}
}

/* A trait is fitted to what the others leave to explain. */
static void fit_trait(const struct pfx_learn *l, struct sums *s, uint32_t t, double *means)
{
	double used[CLASSES] = { 0 }, expected[CLASSES] = { 0 };

	for (uint32_t c = 0; c < CLASSES; c++) {
		if (l->classes[c].seen) {
			uint32_t v = value_of(c, t);

			used[v] += s->used[c];
			expected[v] += s->expected[c] * s->product[c] / means[v];
		}
	}
	for (uint32_t v = 0; v < traits[t].n; v++) {
		used[v] = (used[v] + DOUBT) / (expected[v] + DOUBT);
	}
	for (uint32_t c = 0; c < CLASSES; c++) {
		if (l->classes[c].seen) {
			s->product[c] *= used[value_of(c, t)] / means[value_of(c, t)];
		}
	}
	memcpy(means, used, traits[t].n * sizeof(*means));
}

/* All of them, a few times over. */
static void fit_traits(const struct pfx_learn *l, struct sums *s)
{
	double means[TRAITS][CLASSES]; /* by value */

	for (uint32_t c = 0; c < CLASSES; c++) {
		s->product[c] = 1;
		for (uint32_t t = 0; t < TRAITS; t++) {
			means[t][c] = 1;
		}
	}
	for (uint32_t round = 0; round < ROUNDS * TRAITS; round++) {
		fit_trait(l, s, round % TRAITS, means[round % TRAITS]);
	}
}

/* How many times as often as the common curve says is this class used again? */
static double factor_of(const struct sums *s, uint32_t class)
{
	double believed = s->product[class];
	double factor = believed * (s->used[class] + DOUBT) / (s->expected[class] * believed + DOUBT);

	if (factor > 1) {
		return factor > INDIFFERENT ? factor / INDIFFERENT : 1;
	}
	return factor < 1 / INDIFFERENT ? factor * INDIFFERENT : 1;
}

/* The most uses a tick, over all times for which a block of age k may be kept. */
static double best_rate(const double *hazard, uint32_t k)
{
	double left = 1, uses = 0, time = 0, best = 0;

	for (; k < AGES && left > 0.01; k++) {
		uses += left * hazard[k];
		time += left * (1 - hazard[k] / 2);
		left *= 1 - hazard[k];
		if (uses > best * time) {
			best = uses / time;
		}
	}
	return best;
}

static void worth_by_age(const double *curve, double factor, double *out)
{
	double hazard[AGES], worth = 0;

	for (uint32_t k = 0; k < AGES; k++) {
		hazard[k] = curve[k] * factor < 0.99 ? curve[k] * factor : 0.99;
	}
	for (uint32_t k = AGES; k-- > 0;) {
		double rate = best_rate(hazard, k);

		/* Always a little less with age. */
		worth = (rate > worth ? rate : worth) * (1 + 1e-7);
		out[k] = worth;
	}
	out[AGES] = out[AGES - 1] * (1 - 1e-6);
}

/* The level nearest to a factor, which becomes that level's. */
static uint32_t level_of(double *factor)
{
	uint32_t level = PFX_LEARN_EVEN;
	double of_level = 1;

	while (*factor > of_level * (1 + STEP / 2) && level < PFX_LEARN_LEVELS - 1) {
		of_level *= 1 + STEP;
		level++;
	}
	while (*factor * (1 + STEP / 2) < of_level && level > 0) {
		of_level /= 1 + STEP;
		level--;
	}
	*factor = of_level;
	return level;
}

static void work_out_worths(struct pfx_learn *l)
{
	uint8_t done[PFX_LEARN_LEVELS] = { 0 };
	double curve[AGES];
	struct sums s;

	if (!common_curve(l, curve)) {
		return;
	}
	sum_up(l, curve, &s);
	fit_traits(l, &s);
	for (uint32_t c = 0; c < CLASSES; c++) {
		double factor = l->classes[c].seen ? factor_of(&s, c) : 1;
		uint32_t level = level_of(&factor);

		l->classes[c].level = level;
		if (!done[level]) {
			done[level] = 1;
			worth_by_age(curve, factor, l->worth[level]);
		}
	}
}

static void halve(struct pfx_learn *l)
{
	for (uint32_t c = 0; c < CLASSES; c++) {
		for (uint32_t k = 0; k < AGES; k++) {
			l->classes[c].used[k] /= 2;
			l->classes[c].spent[k] /= 2;
		}
	}
}

/* What waited during the tick that ends now has spent it, each at its age. */
static void end_tick(struct pfx_learn *l)
{
	for (uint32_t c = 0; c < CLASSES; c++) {
		struct pfx_learn_class *class = &l->classes[c];

		for (uint32_t k = 0; class->seen && k < AGES; k++) {
			class->spent[k] += class->waiting[(l->tick - k) % AGES];
		}
		/* The oldest are too old now; their place is taken. */
		class->waiting[(l->tick + 1) % AGES] = 0;
	}
	l->tick++;
	if (l->tick % HALVE_EVERY == 0) {
		halve(l);
	}
}

void pfx_learn_advance(struct pfx_learn *l, uint32_t n)
{
	l->since_worth += n;
	l->in_tick += n;
	while (l->in_tick >= l->tick_blocks) {
		l->in_tick -= l->tick_blocks;
		end_tick(l);
		if (l->since_worth >= WORTH_EVERY) {
			l->since_worth = 0;
			work_out_worths(l);
		}
	}
}

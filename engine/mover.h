#ifndef PFX_ENGINE_MOVER_H
#define PFX_ENGINE_MOVER_H

/*
 * Carries KV between the tiers, so that the engine thread never waits for memory or a disk.
 *
 *   mover thread    spills, fetches and stages saves, strictly in the order given
 *   loader threads  read records from the store and write them to the device
 *   the store's     writer (persist/writer.h) writes, deletes and syncs
 *
 * An order is given by the engine thread, which holds both of its blocks in radix/ until it
 * takes the order back with pfx_mover_next. What a load reads goes to a buffer of the
 * loader's first: a store that never comes back has no block of anybody's, and the order can
 * be withdrawn.
 *
 * Threads: all calls from the engine thread but for open and close, which may come from any
 * while the engine thread is not there. `wake` is called on other threads, without locks.
 */

#include <stdint.h>

#include "base/list.h"
#include "engine/arena.h"
#include "engine/model.h"
#include "persist/store.h"
#include "persist/writer.h"

struct pfx_mover;

enum pfx_order_kind {
	PFX_ORDER_SPILL,  /* device -> host */
	PFX_ORDER_FETCH,  /* host -> device */
	PFX_ORDER_LOAD,   /* store -> device */
	PFX_ORDER_SAVE,   /* device, or host when device is none, -> staging -> store */
	PFX_ORDER_DELETE, /* of a record */
	PFX_ORDER_SYNC,   /* all saves and deletes given before are durable */
	PFX_ORDERS,
};

#define PFX_ORDER_NO_BLOCK UINT32_MAX

struct pfx_order {
	/* Filled in by who gives it. */
	enum pfx_order_kind kind;
	uint32_t device, host;    /* block ids */
	struct pfx_store_key key; /* LOAD, SAVE, DELETE; its tokens point to `tokens` */
	uint32_t tokens[PFX_RECORD_TOKENS_MAX];
	/* For who gives it. */
	struct pfx_list of_owner;
	void *owner;
	uint32_t index, upto, record;

	/* Told by pfx_mover_next. */
	int staged;   /* SAVE: the source is copied, its block can be let go of; told once */
	int finished; /* it is over, result says how, and the order is the caller's again */
	int result;

	/* The mover's own. */
	struct pfx_mover *mover;
	struct pfx_list link;
	uint8_t *buffer;
	uint64_t given_ns;
	int place, was_staged, told_staged, was_finished;
};

struct pfx_mover_opts {
	struct pfx_model *model;
	uint32_t block_tokens;
	struct pfx_arena *host;    /* NULL: no host tier */
	struct pfx_store *store;   /* NULL: no store */
	struct pfx_writer *writer; /* NULL: nothing is saved */
	uint32_t n_staging;        /* saves under way at once */
	uint32_t n_loaders;        /* 0: one */
	void (*wake)(void *arg);
	void *wake_arg;
};

int pfx_mover_open(struct pfx_mover **out, const struct pfx_mover_opts *opts);
/*
 * Ends the threads; orders not taken back are forgotten. Closes the writer too, for its
 * callbacks end here, after it wrote what waits. -ETIMEDOUT: the store did not come back in
 * ms_max; store, writer and what they use are then left as they are and must not be freed.
 * NULL is fine.
 */
int pfx_mover_close(struct pfx_mover *m, uint32_t ms_max);

/* Whether one more order of that kind finds room: a queue's bound, a staging buffer. */
int pfx_mover_room(const struct pfx_mover *m, enum pfx_order_kind kind);
/* A new order, zeroed; NULL: no memory. */
struct pfx_order *pfx_mover_order(struct pfx_mover *m, enum pfx_order_kind kind);
/* One that was not given, or is finished. */
void pfx_mover_free(struct pfx_mover *m, struct pfx_order *o);
/* Sets the key that follows parent (all zero: the first) and copies the tokens. */
void pfx_order_key(struct pfx_order *o, const struct pfx_digest *space,
	const struct pfx_digest *parent, uint32_t pos, const uint32_t *tokens, uint32_t n_tokens);

/* Needs room. Not 0: it could not be given (no memory, shutting down) and is still the caller's. */
int pfx_mover_give(struct pfx_mover *m, struct pfx_order *o);

/*
 * Takes back a load whose bytes have not reached the device and never will from now on: 1,
 * and it is the caller's again. 0: it is being written or is over; pfx_mover_next will tell.
 */
int pfx_mover_withdraw(struct pfx_mover *m, struct pfx_order *o);

/* The next order that something is to be told of, or NULL. */
struct pfx_order *pfx_mover_next(struct pfx_mover *m);
/* Orders that something may be told of are waiting; cheap. */
int pfx_mover_ready(const struct pfx_mover *m);
/* Orders given and not told finished. */
uint32_t pfx_mover_in_flight(const struct pfx_mover *m, enum pfx_order_kind kind);

struct pfx_mover_rates {
	double fetch_ns_per_block, load_ns_per_block; /* smoothed; 0: not measured */
	uint64_t load_wait_ns; /* how long the loader that is longest at one record has been */
};
void pfx_mover_rates(struct pfx_mover *m, struct pfx_mover_rates *out);
/* An estimate that made somebody refuse a load or fetch loses weight, to be tried again. */
void pfx_mover_doubt(struct pfx_mover *m, enum pfx_order_kind kind);

#endif

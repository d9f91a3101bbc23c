/*
 * Turns: whoever names a session waits until those who named it before are done, so that a
 * client may send the next turn, an append or the close without waiting for the answer, and
 * the inside of a session belongs to one request at a time. A turn is taken at submit and
 * left when the request leaves. All of it under engine->lock.
 */
#include "engine/engine_priv.h"

#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"

struct pfx_turn {
	struct pfx_map_node node;
	struct pfx_key key;
	struct pfx_list waiting; /* in the order of submission */
};

int pfx_turn_take_locked(struct pfx_engine *e, struct pfx_request *r)
{
	struct pfx_map_node *it;
	struct pfx_turn *turn;

	if (r->failed || r->job->session == NULL) {
		return 1;
	}
	it = pfx_map_find(&e->turns, r->key.data, r->key.len);
	if (it != NULL) {
		turn = pfx_container_of(it, struct pfx_turn, node);
		pfx_list_push_back(&turn->waiting, &r->link);
		r->waits_turn = 1;
		e->n_turns_waiting++;
		return 0;
	}
	turn = pfx_calloc(1, sizeof(*turn));
	if (turn == NULL) {
		return -ENOMEM;
	}
	turn->key = r->key;
	turn->key.data = pfx_memdup(r->key.data, r->key.len);
	if (turn->key.data == NULL) {
		pfx_free(turn);
		return -ENOMEM;
	}
	pfx_list_init(&turn->waiting);
	turn->node.key = turn->key.data;
	turn->node.key_len = turn->key.len;
	pfx_map_add(&e->turns, &turn->node);
	r->turn = turn;
	return 1;
}

static void stop_waiting(struct pfx_engine *e, struct pfx_request *r)
{
	pfx_list_remove(&r->link);
	r->waits_turn = 0;
	e->n_turns_waiting--;
}

void pfx_turn_leave_locked(struct pfx_engine *e, struct pfx_turn *turn)
{
	struct pfx_request *next;

	/* The threads that would take the next one are going: pfx_turn_close frees it. */
	if (e->stopping) {
		return;
	}
	if (pfx_list_empty(&turn->waiting)) {
		pfx_map_remove(&e->turns, &turn->node);
		pfx_key_free(&turn->key);
		pfx_free(turn);
		return;
	}
	next = pfx_container_of(turn->waiting.next, struct pfx_request, link);
	stop_waiting(e, next);
	next->turn = turn;
	pfx_text_put_locked(e, next);
}

void pfx_turn_give_up_locked(struct pfx_engine *e, struct pfx_request *r)
{
	stop_waiting(e, r);
	pfx_list_push_back(&e->inbox, &r->link);
	e->n_inbox++;
	pthread_cond_signal(&e->engine_wake);
}

void pfx_turn_expire(struct pfx_engine *e)
{
	uint64_t now = pfx_clock_ns();
	struct pfx_map_node *it;
	size_t slot = 0;

	pthread_mutex_lock(&e->lock);
	it = e->n_turns_waiting == 0 ? NULL : pfx_map_next(&e->turns, NULL, &slot);
	for (; it != NULL; it = pfx_map_next(&e->turns, it, &slot)) {
		struct pfx_turn *turn = pfx_container_of(it, struct pfx_turn, node);
		pfx_list_for_safe(at, &turn->waiting) {
			struct pfx_request *r = pfx_container_of(at, struct pfx_request, link);
			if (r->deadline_ns != 0 && now > r->deadline_ns && pfx_job_runs(r->job)) {
				pfx_request_fail(r, PFX_FAULT_DEADLINE, "not done within %u ms",
					r->job->deadline_ms);
				pfx_turn_give_up_locked(e, r);
			}
		}
	}
	pthread_mutex_unlock(&e->lock);
}

void pfx_turn_close(struct pfx_engine *e)
{
	struct pfx_map_node *it, *next;
	size_t slot = 0;

	for (it = pfx_map_next(&e->turns, NULL, &slot); it != NULL; it = next) {
		struct pfx_turn *turn = pfx_container_of(it, struct pfx_turn, node);
		next = pfx_map_next(&e->turns, it, &slot);
		pfx_list_for_safe(at, &turn->waiting) {
			pfx_request_free(pfx_container_of(at, struct pfx_request, link));
		}
		pfx_key_free(&turn->key);
		pfx_free(turn);
	}
}

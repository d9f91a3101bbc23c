/* The queue of events from the engine's threads to the one that serves its clients. */
#include "engine/engine_priv.h"

#include <errno.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/alloc.h"

struct pfx_event_node {
	struct pfx_event ev; /* first: the event that callers see, and free, is the node */
	struct pfx_event_node *next;
};

int pfx_events_open(struct pfx_events *q)
{
	q->fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	if (q->fd < 0) {
		return -errno;
	}
	pthread_mutex_init(&q->lock, NULL);
	q->head = NULL;
	q->tail = &q->head;
	return 0;
}

void pfx_events_close(struct pfx_events *q)
{
	struct pfx_event_node *node = q->head, *next;

	for (; node != NULL; node = next) {
		next = node->next;
		pfx_event_free(&node->ev);
	}
	pthread_mutex_destroy(&q->lock);
	close(q->fd);
}

struct pfx_event *pfx_event_new(enum pfx_event_kind kind, const struct pfx_job *job)
{
	struct pfx_event_node *node = pfx_xcalloc(1, sizeof(*node));

	node->ev.kind = kind;
	node->ev.number = job->number;
	node->ev.user = job->user;
	node->ev.miss_message = -1;
	return &node->ev;
}

void pfx_events_post(struct pfx_engine *e, struct pfx_event *ev)
{
	struct pfx_events *q = &e->events;
	struct pfx_event_node *node = (struct pfx_event_node *)ev;
	uint64_t one = 1;
	int was_empty;

	pthread_mutex_lock(&q->lock);
	was_empty = q->head == NULL;
	*q->tail = node;
	q->tail = &node->next;
	pthread_mutex_unlock(&q->lock);
	/* The reader drains until empty, so only the first event needs to wake it. */
	if (was_empty) {
		while (write(q->fd, &one, sizeof(one)) < 0 && errno == EINTR) {
		}
	}
}

int pfx_engine_event_fd(const struct pfx_engine *e)
{
	return e->events.fd;
}

struct pfx_event *pfx_engine_next(struct pfx_engine *e)
{
	struct pfx_events *q = &e->events;
	struct pfx_event_node *node;
	uint64_t count;

	pthread_mutex_lock(&q->lock);
	node = q->head;
	if (node != NULL) {
		q->head = node->next;
		if (q->head == NULL) {
			q->tail = &q->head;
		}
		node->next = NULL;
	}
	/* Cleared only when empty, and a post to an empty queue writes after it has the lock, so
	 * no wake-up is lost; EAGAIN says that there was none to clear. */
	if (q->head == NULL) {
		while (read(q->fd, &count, sizeof(count)) < 0 && errno == EINTR) {
		}
	}
	pthread_mutex_unlock(&q->lock);
	if (node != NULL && node->ev.last) {
		atomic_fetch_sub(&e->n_busy, 1);
	}
	return node != NULL ? &node->ev : NULL;
}

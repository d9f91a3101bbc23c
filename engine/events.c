/* The queue of events from the engine's threads to the one that serves its clients. */
#include "engine/engine_priv.h"

#include <errno.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/assert.h"

/* Events of steps that may wait or be read at once before more of them are allocated. */
#define KEPT 1024u
#define SHORT_TEXT 48u /* a token's, as a rule */

struct pfx_event_node {
	struct pfx_event ev; /* first: the event that callers see, and free, is the node */
	struct pfx_event_node *next;
	/* Of events of steps. */
	struct pfx_events *home;
	char text[SHORT_TEXT];
	struct pfx_top top[PFX_LOGPROBS_MAX];
};

int pfx_events_open(struct pfx_events *q)
{
	q->fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	if (q->fd < 0) {
		return -errno;
	}
	q->nodes = pfx_calloc(KEPT, sizeof(*q->nodes));
	if (q->nodes == NULL) {
		close(q->fd);
		return -ENOMEM;
	}
	for (uint32_t i = 0; i < KEPT; i++) {
		q->nodes[i].home = q;
		q->nodes[i].next = q->free;
		q->free = &q->nodes[i];
	}
	q->n_free = KEPT;
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
	PFX_ASSERT(q->n_free == KEPT);
	pfx_free(q->nodes);
	pthread_mutex_destroy(&q->lock);
	close(q->fd);
}

static void fill(struct pfx_event *ev, enum pfx_event_kind kind, const struct pfx_job *job)
{
	ev->kind = kind;
	ev->number = job->number;
	ev->user = job->user;
	ev->miss_message = -1;
}

struct pfx_event *pfx_event_new(enum pfx_event_kind kind, const struct pfx_job *job)
{
	struct pfx_event_node *node = pfx_xcalloc(1, sizeof(*node));

	fill(&node->ev, kind, job);
	return &node->ev;
}

static void give_back(struct pfx_event *ev)
{
	struct pfx_event_node *node = (struct pfx_event_node *)ev;
	struct pfx_events *q = node->home;

	if (ev->text != node->text) {
		pfx_free(ev->text);
	}
	pthread_mutex_lock(&q->lock);
	node->next = q->free;
	q->free = node;
	q->n_free++;
	pthread_mutex_unlock(&q->lock);
}

struct pfx_event *pfx_event_of_step(struct pfx_engine *e, enum pfx_event_kind kind,
	const struct pfx_job *job)
{
	struct pfx_events *q = &e->events;
	struct pfx_event_node *node;

	pthread_mutex_lock(&q->lock);
	node = q->free;
	if (node != NULL) {
		q->free = node->next;
		q->n_free--;
	}
	pthread_mutex_unlock(&q->lock);
	if (node == NULL) {
		return pfx_event_new(kind, job);
	}
	memset(&node->ev, 0, sizeof(node->ev));
	fill(&node->ev, kind, job);
	node->next = NULL;
	node->ev.give_back = give_back;
	return &node->ev;
}

char *pfx_event_text(struct pfx_event *ev, size_t n)
{
	struct pfx_event_node *node = (struct pfx_event_node *)ev;

	ev->text = ev->give_back != NULL && n < SHORT_TEXT ? node->text : pfx_xmalloc(n + 1);
	ev->text_len = n;
	return ev->text;
}

struct pfx_top *pfx_event_top(struct pfx_event *ev)
{
	struct pfx_event_node *node = (struct pfx_event_node *)ev;

	ev->top = ev->give_back != NULL ? node->top
		: pfx_xmalloc(PFX_LOGPROBS_MAX * sizeof(*ev->top));
	return ev->top;
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

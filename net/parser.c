#include "net/parser.h"

#include <errno.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/assert.h"

/* First in, first out. */
struct queue {
	struct pfx_parse_task *head, **tail;
};

struct pfx_parser {
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t wake;
	struct queue todo, done; /* by lock */
	int stop;                /* by lock */
	int fd;
};

static void queue_init(struct queue *q)
{
	q->head = NULL;
	q->tail = &q->head;
}

static void queue_put(struct queue *q, struct pfx_parse_task *t)
{
	t->next = NULL;
	*q->tail = t;
	q->tail = &t->next;
}

static struct pfx_parse_task *queue_take(struct queue *q)
{
	struct pfx_parse_task *t = q->head;

	if (t != NULL) {
		q->head = t->next;
		if (q->head == NULL) {
			q->tail = &q->head;
		}
	}
	return t;
}

static void work(struct pfx_parse_task *t)
{
	if (t->attach) {
		pfx_proto_attach(&t->msg, t->bytes + t->from, t->len);
	} else {
		pfx_proto_parse(&t->msg, t->bytes + t->from, t->len, t->line_max);
	}
}

static void *run(void *arg)
{
	struct pfx_parser *p = arg;
	struct pfx_parse_task *t;
	uint64_t one = 1;

	pthread_mutex_lock(&p->lock);
	while (!p->stop) {
		t = queue_take(&p->todo);
		if (t == NULL) {
			pthread_cond_wait(&p->wake, &p->lock);
			continue;
		}
		pthread_mutex_unlock(&p->lock);
		work(t);
		pthread_mutex_lock(&p->lock);
		queue_put(&p->done, t);
		/* A full counter is readable already. */
		PFX_ASSERT(write(p->fd, &one, sizeof(one)) == sizeof(one) || errno == EAGAIN);
	}
	pthread_mutex_unlock(&p->lock);
	return NULL;
}

int pfx_parser_open(struct pfx_parser **out)
{
	struct pfx_parser *p = pfx_calloc(1, sizeof(*p));
	int rc;

	if (p == NULL) {
		return -ENOMEM;
	}
	queue_init(&p->todo);
	queue_init(&p->done);
	pthread_mutex_init(&p->lock, NULL);
	pthread_cond_init(&p->wake, NULL);
	p->fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	rc = p->fd < 0 ? -errno : -pthread_create(&p->thread, NULL, run, p);
	if (rc < 0) {
		if (p->fd >= 0) {
			close(p->fd);
		}
		pthread_cond_destroy(&p->wake);
		pthread_mutex_destroy(&p->lock);
		pfx_free(p);
		return rc;
	}
	*out = p;
	return 0;
}

void pfx_parser_close(struct pfx_parser *p)
{
	struct pfx_parse_task *t;

	if (p == NULL) {
		return;
	}
	pthread_mutex_lock(&p->lock);
	p->stop = 1;
	pthread_cond_signal(&p->wake);
	pthread_mutex_unlock(&p->lock);
	pthread_join(p->thread, NULL);
	while ((t = queue_take(&p->todo)) != NULL || (t = queue_take(&p->done)) != NULL) {
		pfx_parse_task_free(t);
	}
	close(p->fd);
	pthread_cond_destroy(&p->wake);
	pthread_mutex_destroy(&p->lock);
	pfx_free(p);
}

void pfx_parser_put(struct pfx_parser *p, struct pfx_parse_task *task)
{
	pthread_mutex_lock(&p->lock);
	queue_put(&p->todo, task);
	pthread_cond_signal(&p->wake);
	pthread_mutex_unlock(&p->lock);
}

int pfx_parser_fd(const struct pfx_parser *p)
{
	return p->fd;
}

struct pfx_parse_task *pfx_parser_next(struct pfx_parser *p)
{
	struct pfx_parse_task *t;
	uint64_t n;

	pthread_mutex_lock(&p->lock);
	t = queue_take(&p->done);
	if (t == NULL) {
		/* Emptied under the lock, so that no wake-up is lost. */
		PFX_ASSERT(read(p->fd, &n, sizeof(n)) == sizeof(n) || errno == EAGAIN);
	}
	pthread_mutex_unlock(&p->lock);
	return t;
}

void pfx_parse_task_free(struct pfx_parse_task *task)
{
	pfx_free(task->bytes);
	pfx_msg_free(&task->msg);
	pfx_free(task);
}

#include "config.h"

#include "engine/recorder.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/core_names.h>
#include <openssl/evp.h>
#include <openssl/rand.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/list.h"
#include "base/log.h"

#define QUEUE_BYTES_MAX (64u << 20) /* of tokens that wait to be hashed */
#define PENDING_MAX 4096u           /* records that wait for older requests to end */
#define WRITE_BYTES (64u << 10)     /* written in pieces of about this, and */
#define WRITE_SECONDS 1             /* at the latest so long after the last one */
#define ID_MASK ((1ull << 53) - 1)
#define KEY_BYTES 16

enum state { OPENING, RECORDING, STOPPED, FAILED };

/* What stands in front of each hashed thing, so that none reads like another kind. */
enum domain { DOMAIN_SPACE = 1, DOMAIN_SESSION, DOMAIN_BLOCK };

struct item {
	struct pfx_list link;
	struct pfx_record_request r;
};

/* A finished line that waits until all older requests have theirs. */
struct pending {
	struct pfx_list link;
	uint64_t admission;
	struct pfx_buf line;
};

struct pfx_recorder {
	struct pfx_recorder_opts opts;
	char *path;
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t wake;

	/* Under lock. */
	struct pfx_list queue;
	uint64_t queue_bytes;
	int stopping, stop_asked, done;
	void (*ended)(void *arg, struct pfx_recorder *rec);
	void *ended_arg;
	enum state state;
	char error[256];
	uint64_t records, bytes, dropped, reordered;

	/* The thread's own. */
	int fd;
	EVP_MAC_CTX *mac;
	unsigned char key[KEY_BYTES];
	struct pfx_list pending; /* by admission */
	uint32_t n_pending;
	struct pfx_buf out;
	uint64_t n_out; /* lines in out */
};

/* ---- hashing ---- */

static int hash_open(struct pfx_recorder *rec)
{
	EVP_MAC *mac = EVP_MAC_fetch(NULL, "SIPHASH", NULL);

	if (mac == NULL) {
		return -ENOTSUP;
	}
	rec->mac = EVP_MAC_CTX_new(mac);
	EVP_MAC_free(mac);
	return rec->mac != NULL && RAND_bytes(rec->key, KEY_BYTES) == 1 ? 0 : -EIO;
}

/* 0 when the library fails, which ends the trace. */
static uint64_t hash(struct pfx_recorder *rec, enum domain domain, uint64_t before, const void *p,
	size_t n)
{
	size_t size = sizeof(uint64_t), len = 0;
	OSSL_PARAM params[] = { OSSL_PARAM_construct_size_t(OSSL_MAC_PARAM_SIZE, &size),
		OSSL_PARAM_construct_end() };
	unsigned char head[9];
	uint64_t h = 0;

	head[0] = (unsigned char)domain;
	memcpy(head + 1, &before, sizeof(before));
	if (EVP_MAC_init(rec->mac, rec->key, KEY_BYTES, params) != 1 ||
		EVP_MAC_update(rec->mac, head, sizeof(head)) != 1 ||
		EVP_MAC_update(rec->mac, p, n) != 1 ||
		EVP_MAC_final(rec->mac, (unsigned char *)&h, &len, sizeof(h)) != 1 || len != sizeof(h)) {
		return 0;
	}
	return h;
}

static int make_line(struct pfx_recorder *rec, const struct pfx_record_request *r,
	struct pfx_buf *line)
{
	uint64_t space = hash(rec, DOMAIN_SPACE, 0, &r->space_key, sizeof(r->space_key)), h = space;
	uint64_t ns = r->received_ns > rec->opts.start_ns ? r->received_ns - rec->opts.start_ns : 0;
	uint32_t b = rec->opts.block_tokens;

	pfx_buf_addf(line, "{\"timestamp\":%llu,\"input_length\":%u,\"output_length\":%u,"
		"\"hash_ids\":[",
		(unsigned long long)(ns / 1000000u), r->n_prompt, r->n_reply);
	for (uint32_t at = 0; at < r->n_prompt && h != 0; at += b) {
		uint32_t n = r->n_prompt - at < b ? r->n_prompt - at : b;

		h = hash(rec, DOMAIN_BLOCK, h, r->tokens + at, n * sizeof(*r->tokens));
		pfx_buf_addf(line, "%s%llu", at == 0 ? "" : ",", (unsigned long long)(h & ID_MASK));
	}
	pfx_buf_addf(line, "],\"namespace\":%llu", (unsigned long long)(space & ID_MASK));
	if (r->session != NULL && h != 0) {
		/* Sessions of two namespaces may have one name. */
		h = hash(rec, DOMAIN_SESSION, space, r->session, r->session_len);
		pfx_buf_addf(line, ",\"session\":%llu", (unsigned long long)(h & ID_MASK));
	}
	pfx_buf_adds(line, r->last_turn ? ",\"last_turn\":true}\n" : "}\n");
	return h == 0 ? -EIO : line->oom ? -ENOMEM : 0;
}

/* ---- the file ---- */

__attribute__((format(printf, 2, 3)))
static void fail(struct pfx_recorder *rec, const char *fmt, ...)
{
	va_list ap;

	pthread_mutex_lock(&rec->lock);
	va_start(ap, fmt);
	vsnprintf(rec->error, sizeof(rec->error), fmt, ap);
	va_end(ap);
	rec->state = FAILED;
	pthread_mutex_unlock(&rec->lock);
	pfx_warn("trace", "%s", rec->error);
}

/* Writes what is gathered. A line that does not go in whole is taken back. */
static void write_out(struct pfx_recorder *rec)
{
	size_t done = 0;
	int why = 0;

	while (done < rec->out.len && why == 0) {
		ssize_t n = write(rec->fd, rec->out.data + done, rec->out.len - done);

		if (n > 0) {
			done += (size_t)n;
		} else if (n == 0 || errno != EINTR) {
			why = n == 0 ? EIO : errno;
		}
	}
	if (why != 0) {
		if (ftruncate(rec->fd, (off_t)rec->bytes) != 0) {
			pfx_warn("trace", "the file ends within a line");
		}
		fail(rec, "the trace has ended: %s: %s", rec->path, strerror(why));
	} else {
		pthread_mutex_lock(&rec->lock);
		rec->bytes += rec->out.len;
		rec->records += rec->n_out;
		pthread_mutex_unlock(&rec->lock);
	}
	pfx_buf_reset(&rec->out);
	rec->n_out = 0;
}

static void put_line(struct pfx_recorder *rec, struct pending *p)
{
	if (rec->state == RECORDING) {
		if (rec->bytes + rec->out.len + p->line.len > rec->opts.max_bytes) {
			write_out(rec);
			if (rec->state == RECORDING) {
				fail(rec, "the trace has ended: max_bytes is reached");
			}
		} else {
			pfx_buf_add(&rec->out, p->line.data, p->line.len);
			rec->n_out++;
			if (rec->out.oom) {
				fail(rec, "the trace has ended: out of memory");
			}
		}
		if (rec->state == RECORDING && rec->out.len >= WRITE_BYTES) {
			write_out(rec);
		}
	}
	pfx_list_remove(&p->link);
	rec->n_pending--;
	pfx_buf_free(&p->line);
	pfx_free(p);
}

/* Lines of requests below floor go out: nothing older will come. */
static void put_below(struct pfx_recorder *rec, uint64_t floor)
{
	while (!pfx_list_empty(&rec->pending)) {
		struct pending *p = pfx_container_of(rec->pending.next, struct pending, link);

		if (p->admission >= floor && rec->n_pending <= PENDING_MAX) {
			break;
		}
		if (p->admission >= floor) {
			pthread_mutex_lock(&rec->lock);
			rec->reordered++;
			pthread_mutex_unlock(&rec->lock);
		}
		put_line(rec, p);
	}
}

static void take_in(struct pfx_recorder *rec, const struct pfx_record_request *r)
{
	struct pending *p = pfx_calloc(1, sizeof(*p));
	struct pfx_list *at = rec->pending.prev;

	if (p == NULL || make_line(rec, r, &p->line) != 0) {
		fail(rec, "the trace has ended: out of memory, or SipHash failed");
		if (p != NULL) {
			pfx_buf_free(&p->line);
			pfx_free(p);
		}
		return;
	}
	p->admission = r->admission;
	while (at != &rec->pending &&
		pfx_container_of(at, struct pending, link)->admission > p->admission) {
		at = at->prev;
	}
	pfx_list_insert_after(at, &p->link);
	rec->n_pending++;
	put_below(rec, r->floor);
}

/* ---- the thread ---- */

static void free_item(struct item *it)
{
	pfx_free(it->r.tokens);
	pfx_free(it->r.session);
	pfx_free(it);
}

/* The next item; NULL when a second has passed, or when it is time to stop (*stop is set). */
static struct item *next_item(struct pfx_recorder *rec, int *stop)
{
	struct item *it = NULL;
	struct timespec until;

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += WRITE_SECONDS;
	pthread_mutex_lock(&rec->lock);
	while (pfx_list_empty(&rec->queue) && !rec->stopping &&
		pthread_cond_timedwait(&rec->wake, &rec->lock, &until) == 0) {
	}
	if (!pfx_list_empty(&rec->queue)) {
		it = pfx_container_of(rec->queue.next, struct item, link);
		pfx_list_remove(&it->link);
		rec->queue_bytes -= it->r.n_prompt * sizeof(*it->r.tokens);
	} else {
		*stop = rec->stopping;
	}
	pthread_mutex_unlock(&rec->lock);
	return it;
}

static void open_file(struct pfx_recorder *rec)
{
	char error[sizeof(rec->error)] = "";

	if (hash_open(rec) != 0) {
		snprintf(error, sizeof(error), "SipHash is not to be had from libcrypto");
	} else {
		rec->fd = open(rec->path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
		if (rec->fd < 0) {
			snprintf(error, sizeof(error), "path: %.150s: %s", rec->path, strerror(errno));
		}
	}
	/* No word in the log: who asked for it hears of it. */
	pthread_mutex_lock(&rec->lock);
	rec->state = error[0] != 0 ? FAILED : RECORDING;
	memcpy(rec->error, error, sizeof(error));
	pthread_mutex_unlock(&rec->lock);
	rec->opts.opened(rec->opts.arg, rec, error[0] != 0 ? error : NULL);
}

static void finish(struct pfx_recorder *rec)
{
	put_below(rec, UINT64_MAX);
	if (rec->out.len > 0) {
		write_out(rec);
	}
	if (rec->fd >= 0 && close(rec->fd) != 0 && rec->state == RECORDING) {
		fail(rec, "the trace has ended: %s: %s", rec->path, strerror(errno));
	}
	EVP_MAC_CTX_free(rec->mac);
	OPENSSL_cleanse(rec->key, KEY_BYTES);
	pthread_mutex_lock(&rec->lock);
	if (rec->state == RECORDING) {
		rec->state = STOPPED;
	}
	rec->done = 1;
	pthread_mutex_unlock(&rec->lock);
	if (rec->ended != NULL) {
		rec->ended(rec->ended_arg, rec);
	}
}

static void *record(void *arg)
{
	struct pfx_recorder *rec = arg;
	struct item *it;
	int stop = 0;

	open_file(rec);
	while (!stop) {
		it = next_item(rec, &stop);
		if (it == NULL) {
			if (rec->out.len > 0) {
				write_out(rec);
			}
			continue;
		}
		if (rec->state == RECORDING) {
			take_in(rec, &it->r);
		}
		free_item(it);
	}
	finish(rec);
	return NULL;
}

/* ---- from outside ---- */

static void free_all(struct pfx_recorder *rec)
{
	pthread_mutex_destroy(&rec->lock);
	pthread_cond_destroy(&rec->wake);
	pfx_buf_free(&rec->out);
	pfx_free(rec->path);
	pfx_free(rec);
}

int pfx_recorder_start(struct pfx_recorder **out, const struct pfx_recorder_opts *opts)
{
	struct pfx_recorder *rec = pfx_calloc(1, sizeof(*rec));
	int rc;

	if (rec == NULL) {
		return -ENOMEM;
	}
	rec->opts = *opts;
	rec->fd = -1;
	pfx_list_init(&rec->queue);
	pfx_list_init(&rec->pending);
	pthread_mutex_init(&rec->lock, NULL);
	pthread_cond_init(&rec->wake, NULL);
	rec->path = pfx_strdup(opts->path);
	rc = rec->path == NULL ? ENOMEM : pthread_create(&rec->thread, NULL, record, rec);
	if (rc != 0) {
		free_all(rec);
		return -rc;
	}
	*out = rec;
	return 0;
}

void pfx_recorder_stop(struct pfx_recorder *rec,
	void (*ended)(void *arg, struct pfx_recorder *rec), void *arg)
{
	pthread_mutex_lock(&rec->lock);
	rec->ended = ended;
	rec->ended_arg = arg;
	rec->stopping = rec->stop_asked = 1;
	pthread_cond_signal(&rec->wake);
	pthread_mutex_unlock(&rec->lock);
}

void pfx_recorder_close(struct pfx_recorder *rec)
{
	if (rec == NULL) {
		return;
	}
	pthread_mutex_lock(&rec->lock);
	rec->stopping = 1;
	pthread_cond_signal(&rec->wake);
	pthread_mutex_unlock(&rec->lock);
	pthread_join(rec->thread, NULL);
	free_all(rec);
}

int pfx_recorder_is_on(const struct pfx_recorder *rec)
{
	struct pfx_recorder *r = (struct pfx_recorder *)rec;
	int on;

	if (rec == NULL) {
		return 0;
	}
	pthread_mutex_lock(&r->lock);
	on = !r->stop_asked && (r->state == RECORDING || r->state == OPENING);
	pthread_mutex_unlock(&r->lock);
	return on;
}

int pfx_recorder_is_done(const struct pfx_recorder *rec)
{
	struct pfx_recorder *r = (struct pfx_recorder *)rec;
	int done;

	if (rec == NULL) {
		return 1;
	}
	pthread_mutex_lock(&r->lock);
	/* After an error there is nothing left to write: it ends as soon as it is told to. */
	done = r->done || r->state == FAILED;
	pthread_mutex_unlock(&r->lock);
	return done;
}

void pfx_recorder_add(struct pfx_recorder *rec, const struct pfx_record_request *r)
{
	uint64_t bytes = r->n_prompt * sizeof(*r->tokens);
	struct item *it = pfx_malloc(sizeof(*it));

	if (it != NULL) {
		it->r = *r;
		pthread_mutex_lock(&rec->lock);
		if (rec->queue_bytes + bytes <= QUEUE_BYTES_MAX && !rec->stopping) {
			rec->queue_bytes += bytes;
			pfx_list_push_back(&rec->queue, &it->link);
			pthread_cond_signal(&rec->wake);
			pthread_mutex_unlock(&rec->lock);
			return;
		}
		rec->dropped++;
		pthread_mutex_unlock(&rec->lock);
		free_item(it);
		return;
	}
	pfx_free(r->tokens);
	pfx_free(r->session);
}

json_t *pfx_recorder_status(struct pfx_recorder *rec)
{
	static const char *const states[] = { "opening", "recording", "stopped", "failed" };
	json_t *o;

	if (rec == NULL) {
		return json_pack("{s:s,s:n,s:i,s:i,s:i,s:i,s:i,s:n}", "state", "off", "path", "records", 0,
			"bytes", 0, "max_bytes", 0, "dropped", 0, "reordered", 0, "error");
	}
	pthread_mutex_lock(&rec->lock);
	o = json_pack("{s:s,s:s,s:I,s:I,s:I,s:I,s:I,s:s?}", "state", states[rec->state], "path",
		rec->path, "records", (json_int_t)rec->records, "bytes", (json_int_t)rec->bytes,
		"max_bytes", (json_int_t)rec->opts.max_bytes, "dropped", (json_int_t)rec->dropped,
		"reordered", (json_int_t)rec->reordered, "error",
		rec->error[0] != 0 ? rec->error : NULL);
	pthread_mutex_unlock(&rec->lock);
	return o;
}

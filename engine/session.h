#ifndef PFX_ENGINE_SESSION_H
#define PFX_ENGINE_SESSION_H

/*
 * The sessions: conversations that the server keeps, so that a client sends only the new
 * turn. A session is a list of messages, or, when it was begun with text or ids, one run of
 * ids. It only ever grows, and only by a turn that succeeded.
 *
 * The table has a lock of its own, for finding, making and dropping; the inside of a session
 * belongs to the one request that has its turn (engine/turns.c sees to it that there is one
 * at most), between begin or make and end or drop.
 */

#include "base/buf.h"
#include "engine/engine.h"
#include "engine/map.h"
#include "engine/tokenizer.h"

struct pfx_sessions;

struct pfx_sessions_opts {
	uint32_t n_max;       /* sessions in all, */
	uint32_t n_space_max; /* and of one of the server's namespaces */
	uint64_t bytes_max;   /* of all of them */
	uint64_t ttl_ns;      /* idle life, when the client says nothing */
};

struct pfx_sessions_stats {
	uint32_t n;
	uint64_t bytes, opened, closed, expired, refused, turns;
};

/* What the model has seen of a conversation of messages, to the token. */
struct pfx_seen {
	struct pfx_ids ids;
	struct pfx_buf text; /* what they spell, as the template rendered it */
	size_t prompt_bytes;    /* of text: up to where the reply begins */
	struct pfx_span *specials; /* where in the prompt's text special tokens were read */
	size_t n_specials;
	size_t end; /* bytes of text that the last id, which ended the reply, spells */
};
void pfx_seen_free(struct pfx_seen *s);

/* A session as its last turn left it: for lists, which may not look into one that is in a turn. */
struct pfx_told {
	enum pfx_prompt_kind kind;
	size_t n_messages, n_tokens;
	uint32_t turns;
	uint64_t ttl_ns;
};

struct pfx_session {
	struct pfx_map_node node; /* the table's, as is */
	struct pfx_key key;
	int in_turn;
	uint64_t idle_ns; /* since when nothing was said */
	size_t bytes;     /* accounted for */
	struct pfx_told told;

	/* Of whose turn it is. */
	enum pfx_prompt_kind kind; /* CHAT, or TOKENS for a run; NONE until something is said */
	json_t *messages, *tools, *documents, *kwargs; /* CHAT */
	size_t json_bytes;                             /* what they take, about */
	struct pfx_seen seen;                          /* a run has only the ids */
	uint64_t ttl_ns;
	int keeps; /* the client named the ttl: blocks are kept for so long too */
	uint64_t opened_ns;
	uint32_t turns;
};

int pfx_sessions_open(struct pfx_sessions **out, const struct pfx_sessions_opts *opts);
void pfx_sessions_close(struct pfx_sessions *t); /* also what is in a turn */

/*
 * A new session, in its first turn. key's name may be empty: one is made, which no client
 * can guess. -EEXIST; PFX_E_FULL (err says what is full); -ENOMEM.
 */
int pfx_session_make(struct pfx_sessions *t, const struct pfx_key *key, uint64_t now,
	struct pfx_session **out, char *err, size_t errlen);
/* The session, in a turn from now on; NULL when there is none, or it was idle for too long. */
struct pfx_session *pfx_session_begin(struct pfx_sessions *t, const struct pfx_key *key,
	uint64_t now);
/* PFX_E_FULL: so many bytes more are more than the server keeps; err says so. */
int pfx_session_room(struct pfx_sessions *t, size_t bytes, char *err, size_t errlen);
/* The turn is over; what the session has grown by is accounted for. */
void pfx_session_end(struct pfx_sessions *t, struct pfx_session *s, uint64_t now);
/* The turn is over and so is the session. */
void pfx_session_drop(struct pfx_sessions *t, struct pfx_session *s);
/* Bytes of the session, about; 0 when there is none. */
size_t pfx_session_bytes(struct pfx_sessions *t, const struct pfx_key *key);
/*
 * Those of the namespace and salt of `of` (all: of its namespace), by name: session, namespace,
 * salt, kind, messages, tokens, turns, ttl_ms, bytes, idle_s, busy. One that is in a turn is
 * told of as the turn before left it.
 */
json_t *pfx_sessions_list(struct pfx_sessions *t, const struct pfx_key *of, int all, uint64_t now);
void pfx_sessions_stats(struct pfx_sessions *t, uint64_t now, struct pfx_sessions_stats *out);

/* In a turn. */

/*
 * Makes the job's prompt whole: the conversation's messages in front of its own. For a run,
 * the job keeps its own text or ids, which go behind seen.ids. -EINVAL: what the job brings
 * cannot go on behind this session; err says why; -ENOMEM.
 */
int pfx_session_join(const struct pfx_session *s, struct pfx_job *job, char *err, size_t errlen);
/*
 * The conversation is now what the (joined) job's messages say, and, reply not being NULL,
 * an assistant's message with that text. Takes the job's messages and companions. -ENOMEM
 * leaves the session as it was.
 */
int pfx_session_say(struct pfx_session *s, struct pfx_job *job, const char *reply, size_t len);
/* A run goes on with these ids (taken). */
void pfx_session_run(struct pfx_session *s, struct pfx_ids *ids);

#endif

#ifndef PFX_NET_PROTO_H
#define PFX_NET_PROTO_H

/*
 * One request line -> one message: a job for the engine, or an operation that the front
 * door answers itself. No I/O; any thread; fuzzed (tests/fuzz_proto.c). doc/protocol.md is
 * the contract: types are strict, what is wrong is `bad_request` and named, fields that
 * nobody knows are ignored.
 */

#include <stddef.h>
#include <stdint.h>

#include "engine/engine.h"

enum pfx_op {
	PFX_OP_NONE,
	PFX_OP_HELLO,
	PFX_OP_PING,
	PFX_OP_AUTH,
	PFX_OP_CANCEL,
	PFX_OP_CONFIG,
	PFX_OP_DRAIN,
	/* From here on the engine answers: the message carries a job. */
	PFX_OP_GENERATE,
	PFX_OP_WARM,
	PFX_OP_SCORE,
	PFX_OP_RENDER,
	PFX_OP_TOKENIZE,
	PFX_OP_DETOKENIZE,
	PFX_OP_SESSION_OPEN,
	PFX_OP_SESSION_APPEND,
	PFX_OP_SESSION_CLOSE,
	PFX_OP_SESSION_LIST,
	PFX_OP_END,
	PFX_OP_PIN,
	PFX_OP_UNPIN,
	PFX_OP_PINS,
	PFX_OP_PREFIX_PUT,
	PFX_OP_PREFIX_GET,
	PFX_OP_PREFIX_LIST,
	PFX_OP_PREFIX_DELETE,
	PFX_OP_STATS,
	PFX_OP_CHECK,
	PFX_OP_FLUSH,
	PFX_OP_EVICT,
	PFX_OP_SAVE,
	PFX_OP_STORE,
	PFX_OP_HITS,
	PFX_OP_TOP,
	PFX_OP_TREE,
	PFX_OP_EXPLAIN,
	PFX_OP_TRACE,
};

/* Bytes of an id that is a string; it is echoed in every line of the reply. */
#define PFX_ID_MAX 1024

/* A request's id as the client wrote it. json holds it as JSON text: 1, "a" or null. */
struct pfx_id {
	char *json;
	size_t json_len;
	uint64_t hash; /* of json; 0 when there is no id */
};

struct pfx_msg {
	struct pfx_id id;
	enum pfx_op op;
	struct pfx_job *job; /* owned; NULL when op needs none, or when bad */
	int stream;          /* GENERATE */
	struct pfx_id target; /* CANCEL: one of these */
	uint64_t number;      /* CANCEL: 0 when by target */

	/* Raw bytes that follow the line, whatever became of the line itself. */
	uint64_t prompt_bytes;
	int has_prompt_bytes;
	/* Where the next line begins is not known: this connection must end. */
	int lost;

	int bad; /* fault and error say why; the id is told when it was readable */
	enum pfx_fault fault;
	char error[256];
};

/*
 * Always fills *m; what is wrong stands in m->bad. The line comes without its newline and
 * is not kept. line_max bounds prompt_bytes. pfx_msg_free is due.
 */
void pfx_proto_parse(struct pfx_msg *m, const char *line, size_t n, size_t line_max);
/*
 * The raw bytes of a message with has_prompt_bytes become its prompt; UTF-8 is asked for.
 * Does nothing to a message that is bad, and may make it so.
 */
void pfx_proto_attach(struct pfx_msg *m, const char *bytes, size_t n);
void pfx_msg_free(struct pfx_msg *m);
int pfx_id_equal(const struct pfx_id *a, const struct pfx_id *b);
/* The op's name on the wire. */
const char *pfx_op_name(enum pfx_op op);

#endif

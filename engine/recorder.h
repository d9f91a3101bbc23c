#ifndef PFX_ENGINE_RECORDER_H
#define PFX_ENGINE_RECORDER_H

/*
 * Records the server's own traffic as a trace in the Mooncake form (prefix-sim reads it): one
 * JSON object a request, in the order in which requests came in, with `timestamp` (ms since
 * the start), `input_length`, `output_length`, `hash_ids` (one for each block of the prompt,
 * chained; a last, partly filled block has an id of its own), `namespace`, and `session` and
 * `last_turn` where the client told them. No text and no token is in it: ids are SipHash-2-4
 * under a key that is drawn at each start and kept in memory alone, cut to 53 bits so that
 * any reader of JSON keeps them whole.
 *
 * A thread of its own opens, hashes and writes; the engine thread only hands over, and drops
 * the record when the thread is too far behind. The file is made by the server, for its user
 * alone, and never one that was there before. Any error ends the trace; what stands in the
 * file then is whole lines.
 */

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

struct pfx_recorder;

struct pfx_recorder_opts {
	const char *path;
	uint64_t max_bytes;
	uint32_t block_tokens;
	uint64_t start_ns; /* pfx_clock_ns: timestamp 0 */
	/*
	 * Called once from the recorder's thread when the file is open, or could not be made
	 * (error: a sentence, else NULL).
	 */
	void (*opened)(void *arg, struct pfx_recorder *rec, const char *error);
	void *arg;
};

/* Starts the thread. -ENOMEM or a negative errno, and `opened` is not called then. */
int pfx_recorder_start(struct pfx_recorder **out, const struct pfx_recorder_opts *opts);
/*
 * Ends the trace: what was handed over is written, then `ended` is called, from the
 * recorder's thread. At most once.
 */
void pfx_recorder_stop(struct pfx_recorder *rec,
	void (*ended)(void *arg, struct pfx_recorder *rec), void *arg);
/* Ends the trace if need be and waits for the thread. NULL is fine. */
void pfx_recorder_close(struct pfx_recorder *rec);

/* Records are wanted: it is open, nobody has stopped it, and no error has ended it. */
int pfx_recorder_is_on(const struct pfx_recorder *rec);
/* The thread has nothing more to do: close will not wait. NULL is done. */
int pfx_recorder_is_done(const struct pfx_recorder *rec);

struct pfx_record_request {
	uint64_t admission; /* its place in the order of arrival */
	uint64_t floor;     /* all requests below this one have been handed over */
	uint64_t received_ns;
	uint64_t space_key;
	uint32_t *tokens; /* owned: the recorder's from here on */
	uint32_t n_prompt, n_reply;
	char *session;      /* owned likewise; NULL: none */
	size_t session_len;
	int last_turn;
};
void pfx_recorder_add(struct pfx_recorder *rec, const struct pfx_record_request *r);

/* {state, path, records, bytes, max_bytes, dropped, error}; any thread. */
json_t *pfx_recorder_status(struct pfx_recorder *rec);

#endif

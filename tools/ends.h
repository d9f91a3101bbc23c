#ifndef PFX_TOOLS_ENDS_H
#define PFX_TOOLS_ENDS_H

/*
 * Which requests of a trace belong to one conversation, and which of them is its last. Where
 * the trace says `session`, that is the conversation. Else a request goes on with that of the
 * request that was the latest to use the last block that is known already, if what is known is
 * more than half of that request's blocks: so a regenerated or changed turn belongs to the
 * conversation too, and two conversations behind the same instructions, once they are as long
 * as these, are two. A request for which there is no such other begins a conversation.
 */

#include "tools/trace.h"

/* Fills in `conversation` of all rows; only what stands before a row decides. -ENOMEM. */
int pfx_ends_conversations(struct pfx_trace *t);
/*
 * After that: the last row of each conversation gets `last_turn`, as a client would say it
 * that knows what it will do. Does nothing to a trace that has any of its own. -ENOMEM.
 */
int pfx_ends_derive(struct pfx_trace *t);

#endif

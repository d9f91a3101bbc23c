#ifndef PFX_NET_PROTO_PRIV_H
#define PFX_NET_PROTO_PRIV_H

/* What the files that read request lines share. */

#include <stdarg.h>

#include "net/proto.h"

/* Sets of ops, a bit each. */
#define OP(name) (1ull << PFX_OP_##name)
#define OPS_RUN (OP(GENERATE) | OP(WARM) | OP(SCORE))
/* Of the engine itself, with a prompt in any of generate's forms, or none. */
#define OPS_ABOUT (OP(TREE) | OP(EXPLAIN))
/* A prompt, in any form, is put somewhere. */
#define OPS_PUT (OP(SESSION_OPEN) | OP(SESSION_APPEND) | OP(END) | OP(PIN) | OP(PREFIX_PUT))
#define OPS_PROMPT (OPS_RUN | OPS_PUT | OPS_ABOUT)
#define OPS_CHAT (OP(GENERATE) | OP(WARM) | OP(RENDER) | OP(TOKENIZE) | OPS_PUT | OPS_ABOUT)

/* Marks the message; -1. */
int pfx_proto_vbad(struct pfx_msg *m, enum pfx_fault fault, const char *fmt, va_list ap)
	__attribute__((format(printf, 3, 0)));

/* names.c: whose cache is asked, and the names of what was put there. -1: the message is bad. */
int pfx_proto_names(struct pfx_msg *m, const json_t *root);
/* What the fields of ops that keep something say together. */
int pfx_proto_check_kept(struct pfx_msg *m);

#endif

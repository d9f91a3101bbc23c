#ifndef PFX_PERSIST_RECORD_H
#define PFX_PERSIST_RECORD_H

/*
 * What a stored block looks like as bytes, and how it is named. Pure functions over memory:
 * no I/O, no state, safe with any bytes as input.
 *
 *   space    a namespace is its digest: SHA-256 cut to 16 bytes, since names and salts come
 *            from outside and nobody may find two of the same digest.
 *   digest   of a record: 16 bytes, the canonical (big-endian) form of XXH3-128. Not
 *            cryptographic, so it finds a record and never vouches for it: namespace, parent
 *            and tokens are stored beside it and compared on every read.
 *   key      names the KV of n_tokens positions from pos on, of one namespace. The digest
 *            `self` is a chain: it covers the namespace identity, the digest of the record
 *            before and the tokens, each as a typed part with its length in front.
 *   record   a fixed header, the tokens, the KV bytes, one checksum over it all.
 *   entry    the same without the KV: a row of the index that rebuilds the tree.
 *
 * A record holds at most block_tokens positions and begins at a multiple of it; one with
 * fewer is the last of its prefix and has no children. Numbers are little-endian.
 */

#include <stddef.h>
#include <stdint.h>

/* Raised with any change of these layouts; another version is foreign, never guessed at. */
#define PFX_RECORD_VERSION 2
#define PFX_RECORD_TOKENS_MAX 256
/* What a record and the shape row begin with, in every version. */
#define PFX_RECORD_MAGIC "pfx rec\n"
#define PFX_SHAPE_MAGIC "pfx env\n"

struct pfx_digest {
	uint8_t b[16];
};

int pfx_digest_equal(const struct pfx_digest *a, const struct pfx_digest *b);
int pfx_digest_is_zero(const struct pfx_digest *d);
/* 32 lower-case hex digits and a NUL; returns out. */
char *pfx_digest_hex(const struct pfx_digest *d, char out[33]);

/* What all records of one store have in common. */
struct pfx_store_shape {
	struct pfx_digest identity; /* of all that changes KV bytes: model, arithmetic, layout... */
	uint32_t block_tokens;      /* 1..PFX_RECORD_TOKENS_MAX */
	uint64_t kv_bytes;          /* of one block, also of one that is filled in part; >= 1 */
};

struct pfx_store_key {
	struct pfx_digest space;  /* the namespace's identity */
	struct pfx_digest parent; /* self of the record before; all zero at position 0 */
	struct pfx_digest self;
	uint32_t pos;
	uint32_t n_tokens;
	const uint32_t *tokens; /* borrowed: of positions [pos, pos + n_tokens) */
};

/*
 * The identity of a namespace from its name and a client's salt (may be NULL, 0). Cannot fail:
 * without a digest no namespace could be kept from another, so a lack of memory (at the first
 * call alone) ends the process. Any thread.
 */
void pfx_space_digest(const void *name, size_t name_len, const void *salt, size_t salt_len,
	struct pfx_digest *out);

/*
 * The key of the record that follows parent (NULL: the first of a prefix) in the namespace
 * space. Keeps the pointer tokens. n_tokens is 1..PFX_RECORD_TOKENS_MAX. A parent of another
 * namespace is the caller's bug.
 */
void pfx_store_key_make(struct pfx_store_key *out, const struct pfx_digest *space,
	const struct pfx_store_key *parent, const uint32_t *tokens, uint32_t n_tokens);

/*
 * The same for who kept of the parent (NULL: none, and pos is 0) its digest alone. pos is
 * where the tokens begin: the end of the parent.
 */
void pfx_store_key_follow(struct pfx_store_key *out, const struct pfx_digest *space,
	const struct pfx_digest *parent, uint32_t pos, const uint32_t *tokens, uint32_t n_tokens);

/* The key of the first n_tokens of key's own tokens: what a part of this block is named. */
void pfx_store_key_head(struct pfx_store_key *out, const struct pfx_store_key *key,
	uint32_t n_tokens);

/* True when all fields agree, tokens included. */
int pfx_store_key_equal(const struct pfx_store_key *a, const struct pfx_store_key *b);

/* 0, or -EINVAL when no store of that shape can hold such a key (self is checked too). */
int pfx_store_key_check(const struct pfx_store_key *key, const struct pfx_store_shape *shape);

/* The size of a record with n_tokens tokens. */
size_t pfx_record_size(const struct pfx_store_shape *shape, uint32_t n_tokens);

/* Writes pfx_record_size() bytes to out. kv: shape->kv_bytes. */
void pfx_record_encode(void *out, const struct pfx_store_shape *shape,
	const struct pfx_store_key *key, const void *kv);

/*
 * Copies the KV of the record bytes[0..n) to kv (shape->kv_bytes) when everything agrees:
 * magic, version, shape, every field of key, every token, and the checksum, which is taken
 * over the copy. -ENOENT: intact as far as its header tells, but of another key;
 * PFX_E_TRUNCATED, PFX_E_FORMAT: damaged. Unless 0 is returned, what kv holds is undefined.
 */
int pfx_record_decode(const void *bytes, size_t n, const struct pfx_store_shape *shape,
	const struct pfx_store_key *key, void *kv);

/* The part of a record before its KV: the header and the tokens. */
#define PFX_RECORD_HEAD_MAX (112 + PFX_RECORD_TOKENS_MAX * sizeof(uint32_t))
size_t pfx_record_head_size(uint32_t n_tokens);
/*
 * The same for a record whose KV was read to kv already, if it is of key: head has its first
 * bytes, up to pfx_record_head_size(key->n_tokens) of the n that the record has.
 */
int pfx_record_verify(const void *head, size_t n, const struct pfx_store_shape *shape,
	const struct pfx_store_key *key, const void *kv);

/* A row of the index. */
struct pfx_entry_info {
	uint64_t bytes;   /* of the record */
	uint64_t used_ns; /* wall clock: last written or read */
};

size_t pfx_entry_size(uint32_t n_tokens);
void pfx_entry_encode(void *out, const struct pfx_store_key *key,
	const struct pfx_entry_info *info);
/*
 * Reads a row back: key->tokens points to tokens, which has room for PFX_RECORD_TOKENS_MAX;
 * key->self is computed, not read. PFX_E_TRUNCATED or PFX_E_FORMAT: damaged, or no row of a
 * store of that shape.
 */
int pfx_entry_decode(const void *bytes, size_t n, const struct pfx_store_shape *shape,
	struct pfx_store_key *key, uint32_t *tokens, struct pfx_entry_info *info);

/* The one row that says what a store is; compared when it is opened. */
#define PFX_SHAPE_BYTES 64
void pfx_shape_encode(void *out, const struct pfx_store_shape *shape);
/* PFX_E_FORMAT: damaged; PFX_E_UNSUPPORTED: of another version (then *version says which). */
int pfx_shape_decode(const void *bytes, size_t n, struct pfx_store_shape *shape,
	uint32_t *version);

#endif

#include "persist/record.h"

#include <errno.h>
#include <openssl/evp.h>
#include <pthread.h>
#include <string.h>
/* For the size of a hash state, so that one can live on the stack. */
#define XXH_STATIC_LINKING_ONLY
#include <xxhash.h>

#include "base/assert.h"
#include "base/error.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "layouts are written as they lie in memory");

static const char entry_magic[4] = { 'p', 'f', 'x', 'e' };

#define COPY_PIECE (16u << 10)

struct record_header {
	char magic[8];
	uint32_t version;
	uint32_t block_tokens;
	struct pfx_digest identity;
	struct pfx_digest space;
	struct pfx_digest parent;
	struct pfx_digest self;
	uint32_t pos;
	uint32_t n_tokens;
	uint64_t kv_bytes;
	struct pfx_digest check; /* of everything, with this field as zeros */
};
_Static_assert(sizeof(struct record_header) == 112, "record header"); /* PFX_RECORD_HEAD_MAX */
_Static_assert(offsetof(struct record_header, identity) == 16, "record header");
_Static_assert(offsetof(struct record_header, self) == 64, "record header");
_Static_assert(offsetof(struct record_header, pos) == 80, "record header");
_Static_assert(offsetof(struct record_header, check) == 96, "record header");

struct entry_row {
	char magic[4];
	uint32_t version;
	struct pfx_digest space;
	struct pfx_digest parent;
	uint32_t pos;
	uint32_t n_tokens;
	uint64_t bytes;
	uint64_t used_ns;
	uint64_t check; /* XXH3-64 of the row with this field as zeros */
};
_Static_assert(sizeof(struct entry_row) == 72, "index row");
_Static_assert(offsetof(struct entry_row, pos) == 40, "index row");
_Static_assert(offsetof(struct entry_row, check) == 64, "index row");

struct shape_row {
	char magic[8];
	uint32_t version;
	uint32_t block_tokens;
	struct pfx_digest identity;
	uint64_t kv_bytes;
	uint64_t reserved[2]; /* zero */
	uint64_t check;       /* XXH3-64 of what stands before it */
};
_Static_assert(sizeof(struct shape_row) == PFX_SHAPE_BYTES, "shape row");
_Static_assert(offsetof(struct shape_row, identity) == 16, "shape row");
_Static_assert(offsetof(struct shape_row, check) == 56, "shape row");

int pfx_digest_equal(const struct pfx_digest *a, const struct pfx_digest *b)
{
	return memcmp(a->b, b->b, sizeof(a->b)) == 0;
}

int pfx_digest_is_zero(const struct pfx_digest *d)
{
	static const struct pfx_digest zero;

	return pfx_digest_equal(d, &zero);
}

char *pfx_digest_hex(const struct pfx_digest *d, char out[33])
{
	static const char hex[] = "0123456789abcdef";

	for (size_t i = 0; i < sizeof(d->b); i++) {
		out[2 * i] = hex[d->b[i] >> 4];
		out[2 * i + 1] = hex[d->b[i] & 15];
	}
	out[32] = '\0';
	return out;
}

/*
 * What stands before a part of what is hashed: its type, its length as 8 bytes. So no two
 * lists of parts have the same bytes: a name that ends like a salt, or tokens that begin like
 * a digest, are told apart.
 */
struct part_head {
	uint8_t b[9];
};

static struct part_head part_head(char type, size_t n)
{
	struct part_head head;
	uint64_t len = n;

	head.b[0] = (uint8_t)type;
	memcpy(head.b + 1, &len, sizeof(len));
	return head;
}

static void hash_part(XXH3_state_t *st, char type, const void *p, size_t n)
{
	struct part_head head = part_head(type, n);

	XXH3_128bits_update(st, head.b, sizeof(head.b));
	if (n > 0) {
		XXH3_128bits_update(st, p, n);
	}
}

static void hash_end(XXH3_state_t *st, struct pfx_digest *out)
{
	XXH128_canonical_t c;

	XXH128_canonicalFromHash(&c, XXH3_128bits_digest(st));
	memcpy(out->b, c.digest, sizeof(out->b));
}

static int sha_part(EVP_MD_CTX *sha, char type, const void *p, size_t n)
{
	struct part_head head = part_head(type, n);

	return EVP_DigestUpdate(sha, head.b, sizeof(head.b)) == 1 &&
		(n == 0 || EVP_DigestUpdate(sha, p, n) == 1);
}

void pfx_space_digest(const void *name, size_t name_len, const void *salt, size_t salt_len,
	struct pfx_digest *out)
{
	/* Made once, so that later calls ask for no memory. */
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	static EVP_MD_CTX *sha;
	uint8_t full[EVP_MAX_MD_SIZE];
	int made;

	pthread_mutex_lock(&lock);
	sha = sha != NULL ? sha : EVP_MD_CTX_new();
	made = sha != NULL && EVP_DigestInit_ex(sha, EVP_sha256(), NULL) == 1 &&
		sha_part(sha, 'V', "space 2", 7) && sha_part(sha, 'N', name, name_len) &&
		sha_part(sha, 'S', salt, salt_len) && EVP_DigestFinal_ex(sha, full, NULL) == 1;
	pthread_mutex_unlock(&lock);
	PFX_ASSERT(made);
	memcpy(out->b, full, sizeof(out->b));
}

static void key_digest(struct pfx_store_key *key)
{
	XXH3_state_t st;
	size_t parent_len = pfx_digest_is_zero(&key->parent) ? 0 : sizeof(key->parent.b);

	XXH3_128bits_reset(&st);
	hash_part(&st, 'V', "key 1", 5);
	hash_part(&st, 'N', key->space.b, sizeof(key->space.b));
	hash_part(&st, 'P', key->parent.b, parent_len);
	hash_part(&st, 'T', key->tokens, (size_t)key->n_tokens * sizeof(uint32_t));
	hash_end(&st, &key->self);
}

void pfx_store_key_make(struct pfx_store_key *out, const struct pfx_digest *space,
	const struct pfx_store_key *parent, const uint32_t *tokens, uint32_t n_tokens)
{
	if (parent != NULL) {
		PFX_ASSERT(pfx_digest_equal(&parent->space, space));
	}
	pfx_store_key_follow(out, space, parent != NULL ? &parent->self : NULL,
		parent != NULL ? parent->pos + parent->n_tokens : 0, tokens, n_tokens);
}

void pfx_store_key_follow(struct pfx_store_key *out, const struct pfx_digest *space,
	const struct pfx_digest *parent, uint32_t pos, const uint32_t *tokens, uint32_t n_tokens)
{
	struct pfx_store_key key = { .space = *space, .tokens = tokens, .n_tokens = n_tokens,
		.pos = pos };

	PFX_ASSERT(n_tokens >= 1);
	PFX_ASSERT(n_tokens <= PFX_RECORD_TOKENS_MAX);
	PFX_ASSERT((parent == NULL) == (pos == 0));
	if (parent != NULL) {
		key.parent = *parent;
	}
	key_digest(&key);
	*out = key;
}

void pfx_store_key_head(struct pfx_store_key *out, const struct pfx_store_key *key,
	uint32_t n_tokens)
{
	PFX_ASSERT(n_tokens >= 1);
	PFX_ASSERT(n_tokens <= key->n_tokens);
	*out = *key;
	out->n_tokens = n_tokens;
	key_digest(out);
}

int pfx_store_key_equal(const struct pfx_store_key *a, const struct pfx_store_key *b)
{
	return pfx_digest_equal(&a->self, &b->self) && pfx_digest_equal(&a->space, &b->space) &&
		pfx_digest_equal(&a->parent, &b->parent) && a->pos == b->pos &&
		a->n_tokens == b->n_tokens &&
		memcmp(a->tokens, b->tokens, (size_t)a->n_tokens * sizeof(uint32_t)) == 0;
}

/* What a key's numbers must satisfy in any store of that shape. */
static int range_ok(const struct pfx_store_shape *shape, const struct pfx_digest *parent,
	uint32_t pos, uint32_t n_tokens)
{
	return n_tokens >= 1 && n_tokens <= shape->block_tokens && pos % shape->block_tokens == 0 &&
		pos <= UINT32_MAX - n_tokens && (pos == 0) == pfx_digest_is_zero(parent);
}

int pfx_store_key_check(const struct pfx_store_key *key, const struct pfx_store_shape *shape)
{
	struct pfx_store_key again = *key;

	if (!range_ok(shape, &key->parent, key->pos, key->n_tokens)) {
		return -EINVAL;
	}
	key_digest(&again);
	return pfx_digest_equal(&again.self, &key->self) ? 0 : -EINVAL;
}

size_t pfx_record_size(const struct pfx_store_shape *shape, uint32_t n_tokens)
{
	return sizeof(struct record_header) + (size_t)n_tokens * sizeof(uint32_t) +
		(size_t)shape->kv_bytes;
}

size_t pfx_record_head_size(uint32_t n_tokens)
{
	return sizeof(struct record_header) + (size_t)n_tokens * sizeof(uint32_t);
}

static void check_begin(XXH3_state_t *st, const struct record_header *h, const void *tokens)
{
	struct record_header blank = *h;

	memset(&blank.check, 0, sizeof(blank.check));
	XXH3_128bits_reset(st);
	XXH3_128bits_update(st, &blank, sizeof(blank));
	XXH3_128bits_update(st, tokens, (size_t)h->n_tokens * sizeof(uint32_t));
}

/*
 * Copies KV and takes the checksum over the copy, piece by piece, while a piece is in the
 * nearest cache: what was checked is what was copied.
 */
static void check_copy(XXH3_state_t *st, uint8_t *to, const uint8_t *from, size_t n,
	struct pfx_digest *out)
{
	for (size_t at = 0; at < n; at += COPY_PIECE) {
		size_t piece = n - at < COPY_PIECE ? n - at : COPY_PIECE;

		memcpy(to + at, from + at, piece);
		XXH3_128bits_update(st, to + at, piece);
	}
	hash_end(st, out);
}

void pfx_record_encode(void *out, const struct pfx_store_shape *shape,
	const struct pfx_store_key *key, const void *kv)
{
	uint8_t *p = out;
	size_t head = pfx_record_head_size(key->n_tokens);
	XXH3_state_t st;
	struct record_header h = {
		.version = PFX_RECORD_VERSION,
		.block_tokens = shape->block_tokens,
		.identity = shape->identity,
		.space = key->space,
		.parent = key->parent,
		.self = key->self,
		.pos = key->pos,
		.n_tokens = key->n_tokens,
		.kv_bytes = shape->kv_bytes,
	};

	memcpy(h.magic, PFX_RECORD_MAGIC, sizeof(h.magic));
	check_begin(&st, &h, key->tokens);
	check_copy(&st, p + head, kv, (size_t)shape->kv_bytes, &h.check);
	memcpy(p, &h, sizeof(h));
	memcpy(p + sizeof(h), key->tokens, head - sizeof(h));
}

/* All but the checksum, which *h then has. Reads no further than the head of a record of key. */
static int check_head(const void *bytes, size_t n, const struct pfx_store_shape *shape,
	const struct pfx_store_key *key, struct record_header *out)
{
	const uint8_t *p = bytes;
	struct record_header h;

	if (n < sizeof(h)) {
		return PFX_E_TRUNCATED;
	}
	memcpy(&h, p, sizeof(h));
	*out = h;
	if (memcmp(h.magic, PFX_RECORD_MAGIC, sizeof(h.magic)) != 0 || h.version != PFX_RECORD_VERSION ||
		h.block_tokens != shape->block_tokens || h.kv_bytes != shape->kv_bytes ||
		!pfx_digest_equal(&h.identity, &shape->identity) ||
		!range_ok(shape, &h.parent, h.pos, h.n_tokens)) {
		return PFX_E_FORMAT;
	}
	if (n != pfx_record_size(shape, h.n_tokens)) {
		return n < pfx_record_size(shape, h.n_tokens) ? PFX_E_TRUNCATED : PFX_E_FORMAT;
	}
	if (!pfx_digest_equal(&h.self, &key->self) || !pfx_digest_equal(&h.space, &key->space) ||
		!pfx_digest_equal(&h.parent, &key->parent) || h.pos != key->pos ||
		h.n_tokens != key->n_tokens ||
		memcmp(p + sizeof(h), key->tokens, (size_t)h.n_tokens * sizeof(uint32_t)) != 0) {
		return -ENOENT;
	}
	return 0;
}

int pfx_record_decode(const void *bytes, size_t n, const struct pfx_store_shape *shape,
	const struct pfx_store_key *key, void *kv)
{
	struct record_header h;
	struct pfx_digest check;
	XXH3_state_t st;
	int rc = check_head(bytes, n, shape, key, &h);

	if (rc != 0) {
		return rc;
	}
	check_begin(&st, &h, key->tokens);
	check_copy(&st, kv, (const uint8_t *)bytes + pfx_record_head_size(h.n_tokens),
		(size_t)h.kv_bytes, &check);
	return pfx_digest_equal(&check, &h.check) ? 0 : PFX_E_FORMAT;
}

int pfx_record_verify(const void *head, size_t n, const struct pfx_store_shape *shape,
	const struct pfx_store_key *key, const void *kv)
{
	struct record_header h;
	struct pfx_digest check;
	XXH3_state_t st;
	int rc = check_head(head, n, shape, key, &h);

	if (rc != 0) {
		return rc;
	}
	check_begin(&st, &h, key->tokens);
	XXH3_128bits_update(&st, kv, (size_t)h.kv_bytes);
	hash_end(&st, &check);
	return pfx_digest_equal(&check, &h.check) ? 0 : PFX_E_FORMAT;
}

size_t pfx_entry_size(uint32_t n_tokens)
{
	return sizeof(struct entry_row) + (size_t)n_tokens * sizeof(uint32_t);
}

static uint64_t entry_check(const struct entry_row *row, const void *tokens)
{
	XXH3_state_t st;
	struct entry_row blank = *row;

	blank.check = 0;
	XXH3_64bits_reset(&st);
	XXH3_64bits_update(&st, &blank, sizeof(blank));
	XXH3_64bits_update(&st, tokens, (size_t)row->n_tokens * sizeof(uint32_t));
	return XXH3_64bits_digest(&st);
}

void pfx_entry_encode(void *out, const struct pfx_store_key *key,
	const struct pfx_entry_info *info)
{
	uint8_t *p = out;
	struct entry_row row = {
		.version = PFX_RECORD_VERSION,
		.space = key->space,
		.parent = key->parent,
		.pos = key->pos,
		.n_tokens = key->n_tokens,
		.bytes = info->bytes,
		.used_ns = info->used_ns,
	};

	memcpy(row.magic, entry_magic, sizeof(row.magic));
	row.check = entry_check(&row, key->tokens);
	memcpy(p, &row, sizeof(row));
	memcpy(p + sizeof(row), key->tokens, (size_t)key->n_tokens * sizeof(uint32_t));
}

int pfx_entry_decode(const void *bytes, size_t n, const struct pfx_store_shape *shape,
	struct pfx_store_key *key, uint32_t *tokens, struct pfx_entry_info *info)
{
	const uint8_t *p = bytes;
	struct entry_row row;

	if (n < sizeof(row)) {
		return PFX_E_TRUNCATED;
	}
	memcpy(&row, p, sizeof(row));
	if (memcmp(row.magic, entry_magic, sizeof(row.magic)) != 0 ||
		row.version != PFX_RECORD_VERSION ||
		!range_ok(shape, &row.parent, row.pos, row.n_tokens) ||
		row.bytes != pfx_record_size(shape, row.n_tokens)) {
		return PFX_E_FORMAT;
	}
	if (n != pfx_entry_size(row.n_tokens)) {
		return n < pfx_entry_size(row.n_tokens) ? PFX_E_TRUNCATED : PFX_E_FORMAT;
	}
	memcpy(tokens, p + sizeof(row), (size_t)row.n_tokens * sizeof(uint32_t));
	if (row.check != entry_check(&row, tokens)) {
		return PFX_E_FORMAT;
	}
	*key = (struct pfx_store_key){ .space = row.space, .parent = row.parent, .pos = row.pos,
		.n_tokens = row.n_tokens, .tokens = tokens };
	key_digest(key);
	*info = (struct pfx_entry_info){ .bytes = row.bytes, .used_ns = row.used_ns };
	return 0;
}

void pfx_shape_encode(void *out, const struct pfx_store_shape *shape)
{
	struct shape_row row = {
		.version = PFX_RECORD_VERSION,
		.block_tokens = shape->block_tokens,
		.identity = shape->identity,
		.kv_bytes = shape->kv_bytes,
	};

	memcpy(row.magic, PFX_SHAPE_MAGIC, sizeof(row.magic));
	row.check = XXH3_64bits(&row, offsetof(struct shape_row, check));
	memcpy(out, &row, sizeof(row));
}

int pfx_shape_decode(const void *bytes, size_t n, struct pfx_store_shape *shape,
	uint32_t *version)
{
	struct shape_row row;

	*version = 0;
	if (n < sizeof(row)) {
		return PFX_E_FORMAT;
	}
	memcpy(&row, bytes, sizeof(row));
	if (memcmp(row.magic, PFX_SHAPE_MAGIC, sizeof(row.magic)) != 0) {
		return PFX_E_FORMAT;
	}
	/* The check stands in the same place in all versions: a flipped bit makes no version. */
	if (n != sizeof(row) || row.check != XXH3_64bits(&row, offsetof(struct shape_row, check))) {
		return PFX_E_FORMAT;
	}
	*version = row.version;
	if (row.version != PFX_RECORD_VERSION) {
		return PFX_E_UNSUPPORTED;
	}
	*shape = (struct pfx_store_shape){ .identity = row.identity,
		.block_tokens = row.block_tokens, .kv_bytes = row.kv_bytes };
	return 0;
}

/* The store behind the engine: whose bytes it may hold, how it is opened. */
#include "engine/engine_priv.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <xxhash.h>

#include "base/error.h"
#include "base/log.h"
#include "engine/gguf.h"

#define STORE_BYTES_DEFAULT (16ull << 30)

/*
 * All that changes a bit of KV: the model file (its tokenizer and template with it), what the
 * forward pass makes of it, the layout of a block, device and arithmetic.
 */
static int identity(const struct pfx_engine *e, const struct pfx_gguf *g, struct pfx_digest *out)
{
	struct pfx_buf text = PFX_BUF_INIT;
	struct pfx_digest file;
	XXH128_canonical_t canon;
	char hex[33];

	pfx_gguf_digest(g, file.b);
	pfx_buf_addf(&text, "prefixd kv 1\nfile %s\n", pfx_digest_hex(&file, hex));
	pfx_model_describe_kv(e->model, &text);
	if (text.oom) {
		pfx_buf_free(&text);
		return -ENOMEM;
	}
	XXH128_canonicalFromHash(&canon, XXH3_128bits(text.data, text.len));
	memcpy(out->b, canon.digest, sizeof(out->b));
	pfx_buf_free(&text);
	return 0;
}

/*
 * 16 GiB, or three quarters of what the disk has and the store takes already. On a disk that
 * others have filled it is what the store needs to lose nothing, and never less than one may have.
 */
static uint64_t default_size(const char *path, const struct pfx_store_shape *shape)
{
	uint64_t room = STORE_BYTES_DEFAULT, least = pfx_store_lmdb_least(shape, 0), free_bytes, keep;
	struct statvfs fs;
	struct stat file = { 0 };
	char name[4096];

	if (statvfs(path, &fs) == 0) {
		snprintf(name, sizeof(name), "%s/data.mdb", path);
		if (stat(name, &file) != 0) {
			file.st_blocks = file.st_size = 0;
		}
		free_bytes = (uint64_t)fs.f_bavail * fs.f_frsize;
		room = (free_bytes + (uint64_t)file.st_blocks * 512) / 4 * 3;
		keep = pfx_store_lmdb_least(shape, (uint64_t)file.st_size);
		if (free_bytes < least && room < keep) {
			room = keep;
		}
	}
	room = room < STORE_BYTES_DEFAULT ? room : STORE_BYTES_DEFAULT;
	return room > least ? room : least;
}

static int open_lmdb(struct pfx_engine *e, const struct pfx_store_shape *shape, char *err,
	size_t errlen)
{
	const char *path = e->opts.store_path;
	struct pfx_tiers *t = &e->tiers;
	struct pfx_store_lmdb_opts opts = {
		.path = path,
		.shape = *shape,
		.bytes_max = e->opts.store_size,
		.replace = e->opts.store_replace,
	};
	char why[400];
	int rc;

	if (opts.bytes_max == 0) {
		/* Made first, so that its own disk is asked. */
		mkdir(path, 0700);
		opts.bytes_max = default_size(path, shape);
	}
	rc = pfx_store_lmdb_open(&t->store, &opts, &t->opened, why, sizeof(why));
	if (rc == -EEXIST) {
		return pfx_fail(rc, err, errlen,
			"%s; name another folder with --store, or clear this one with --store-replace", why);
	}
	if (rc != 0) {
		return pfx_fail(rc, err, errlen, "--store: %s", why);
	}
	if (t->opened.dropped > 0) {
		pfx_warn("engine", "rows of the store's index were damaged and are dropped rows=%llu "
			"folder=%s", (unsigned long long)t->opened.dropped, path);
	}
	return 0;
}

int pfx_tiers_open_store(struct pfx_engine *e, const struct pfx_gguf *g, char *err, size_t errlen)
{
	struct pfx_store_shape shape = { .block_tokens = e->info.block_tokens,
		.kv_bytes = pfx_model_block_bytes(e->model) };
	struct pfx_tiers *t = &e->tiers;
	struct pfx_writer_opts writer = { .close_ms = e->opts.close_ms / 2 };
	struct pfx_store_info info;
	uint64_t n;
	int rc = identity(e, g, &shape.identity);

	if (rc != 0) {
		return pfx_fail(rc, err, errlen, "out of memory for the store's identity");
	}
	if (e->opts.store != NULL) {
		t->store = e->opts.store;
	} else {
		rc = open_lmdb(e, &shape, err, errlen);
	}
	if (rc != 0) {
		return rc;
	}
	n = pfx_store_capacity(t->store);
	t->n_records = n < INT32_MAX ? (uint32_t)n : INT32_MAX;
	pfx_store_info(t->store, &info);
	if (info.read_only) {
		pfx_warn("engine", "the store cannot be written: it is read, nothing is saved folder=%s",
			e->opts.store_path != NULL ? e->opts.store_path : "");
	}
	rc = pfx_records_open(&t->records, t->n_records, e->info.block_tokens);
	if (rc == 0 && !info.read_only) {
		rc = pfx_writer_open(&t->writer, t->store, &writer);
	}
	if (rc != 0) {
		return pfx_fail(rc, err, errlen, "cannot set up the store: %s", pfx_strerror(rc));
	}
	return 0;
}

#include "persist/audit.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/error.h"

/* ---- the format, as far as it is read ---- */

#define META_MAGIC 0xBEEFC0DEu
#define META_VERSION 1u
#define PAGE_MAX 65536u
#define KEY_MAX 511u
#define DEPTH_MAX 32u
#define NO_PAGE UINT64_MAX

enum { P_BRANCH = 1, P_LEAF = 2, P_OVERFLOW = 4, P_META = 8 };
enum { N_BIG = 1, N_SUB = 2 };

struct page_head {
	uint64_t pgno;
	uint16_t pad, flags;
	union {
		struct {
			uint16_t lower, upper;
		} part;
		uint32_t pages; /* of an overflow page: how many in a row */
	} u;
};
_Static_assert(sizeof(struct page_head) == 16, "page header");

struct node_head {
	uint16_t lo, hi, flags, key_len; /* followed by the key and the data */
};
_Static_assert(sizeof(struct node_head) == 8, "node header");

struct db {
	uint32_t pad; /* of the first one in a meta page: the page size */
	uint16_t flags, depth;
	uint64_t branch_pages, leaf_pages, overflow_pages, entries, root;
};
_Static_assert(sizeof(struct db) == 48, "tree record");

struct meta {
	uint32_t magic, version;
	uint64_t address, mapsize;
	struct db dbs[2]; /* of free pages, of names */
	uint64_t last_page, txnid;
};
_Static_assert(sizeof(struct meta) == 136, "meta page");

/* ---- the audit ---- */

struct audit {
	int fd;
	uint32_t page_size;
	uint64_t n_pages; /* of the snapshot: last_page + 1 */
	uint64_t file_bytes;
	uint8_t *seen; /* a bit a page */
	uint8_t *bufs; /* a page for each level */
	char *why;
	size_t whylen;
};

/* One tree on its way: what was counted, and the last key, which the next one must exceed. */
struct walk {
	struct audit *a;
	struct db want, got;
	int integer_keys;
	int is_free_list, is_names;
	uint8_t last[KEY_MAX];
	size_t last_len;
	int have_last, may_equal;
	struct db subs[8];
	uint32_t n_subs;
};

#define bad(a, ...) pfx_fail(PFX_E_FORMAT, (a)->why, (a)->whylen, __VA_ARGS__)

static int read_at(struct audit *a, void *out, size_t n, uint64_t at)
{
	uint8_t *p = out;

	while (n > 0) {
		ssize_t got = pread(a->fd, p, n, (off_t)at);

		if (got < 0 && errno == EINTR) {
			continue;
		}
		if (got < 0) {
			return pfx_fail(-errno, a->why, a->whylen, "cannot be read: %s", strerror(errno));
		}
		if (got == 0) {
			return pfx_fail(PFX_E_TRUNCATED, a->why, a->whylen,
				"the file ends at byte %llu, inside a page that is in use",
				(unsigned long long)a->file_bytes);
		}
		p += got;
		at += (uint64_t)got;
		n -= (size_t)got;
	}
	return 0;
}

/* Marks n pages from first on as reached. */
static int reach(struct audit *a, uint64_t first, uint64_t n)
{
	if (first < 2 || n > a->n_pages || first > a->n_pages - n) {
		return bad(a, "page %llu lies outside of the %llu pages",
			(unsigned long long)first, (unsigned long long)a->n_pages);
	}
	for (uint64_t p = first; p < first + n; p++) {
		if (a->seen[p / 8] & (1u << (p % 8))) {
			return bad(a, "page %llu is reached twice", (unsigned long long)p);
		}
		a->seen[p / 8] |= (uint8_t)(1u << (p % 8));
	}
	return 0;
}

static int compare_keys(const struct walk *w, const uint8_t *key, size_t len)
{
	size_t n = len < w->last_len ? len : w->last_len;
	int c;

	if (w->integer_keys && len == 8 && w->last_len == 8) {
		uint64_t x, y;

		memcpy(&x, key, 8);
		memcpy(&y, w->last, 8);
		return x < y ? -1 : x > y;
	}
	c = memcmp(key, w->last, n);
	return c != 0 ? c : (len > w->last_len) - (len < w->last_len);
}

/* Keys of leaves and separators of branches form one ascending row; a leaf may repeat the
 * separator that led to it. */
static int next_key(struct walk *w, const uint8_t *key, size_t len, int is_separator)
{
	if (len == 0 || len > KEY_MAX || (w->integer_keys && len != 8)) {
		return bad(w->a, "a key has %zu bytes", len);
	}
	if (w->have_last) {
		int c = compare_keys(w, key, len);

		if (c < 0 || (c == 0 && !w->may_equal)) {
			return bad(w->a, "keys are out of order");
		}
	}
	memcpy(w->last, key, len);
	w->last_len = len;
	w->have_last = 1;
	w->may_equal = is_separator;
	return 0;
}

/* A row of the free list: a count, then that many page numbers, descending. */
static int check_free_row(struct walk *w, const uint8_t *data, size_t n)
{
	uint64_t count, before = NO_PAGE;

	if (n < 8) {
		return bad(w->a, "a row of the free list has %zu bytes", n);
	}
	memcpy(&count, data, 8);
	if (count != n / 8 - 1 || n % 8 != 0) {
		return bad(w->a, "a row of the free list miscounts");
	}
	for (uint64_t i = 1; i <= count; i++) {
		uint64_t page;
		int rc;

		memcpy(&page, data + 8 * i, 8);
		rc = page < before ? reach(w->a, page, 1) : bad(w->a, "the free list is out of order");
		if (rc != 0) {
			return rc;
		}
		before = page;
	}
	return 0;
}

static int check_free_overflow(struct walk *w, uint64_t page, size_t n)
{
	uint8_t *data = pfx_malloc(n);
	int rc = data == NULL ? -ENOMEM :
		read_at(w->a, data, n, page * w->a->page_size + sizeof(struct page_head));

	if (rc == 0) {
		rc = check_free_row(w, data, n);
	}
	pfx_free(data);
	return rc;
}

static uint64_t pages_of(size_t data_len, uint32_t page_size)
{
	return (sizeof(struct page_head) + data_len + page_size - 1) / page_size;
}

static int check_big(struct walk *w, uint64_t page, size_t data_len)
{
	struct audit *a = w->a;
	uint64_t need = pages_of(data_len, a->page_size);
	struct page_head h = { .u.pages = (uint32_t)need };
	int rc = 0;

	if (page < 2 || page >= a->n_pages) {
		return bad(a, "a value lies at page %llu of %llu", (unsigned long long)page,
			(unsigned long long)a->n_pages);
	}
	/* A row of the free list has room beyond what it holds, as LMDB writes it. */
	if (w->is_free_list) {
		rc = read_at(a, &h, sizeof(h), page * a->page_size);
		if (rc == 0 && (h.flags != P_OVERFLOW || h.pgno != page || h.u.pages < need)) {
			rc = bad(a, "page %llu does not begin a value", (unsigned long long)page);
		}
	}
	if (rc != 0) {
		return rc;
	}
	rc = reach(a, page, h.u.pages);
	if (rc == 0 && (page + need) * a->page_size > a->file_bytes) {
		rc = pfx_fail(PFX_E_TRUNCATED, a->why, a->whylen,
			"the file ends at byte %llu, inside a value", (unsigned long long)a->file_bytes);
	}
	w->got.overflow_pages += h.u.pages;
	return rc == 0 && w->is_free_list ? check_free_overflow(w, page, data_len) : rc;
}

static int check_data(struct walk *w, const struct node_head *node, const uint8_t *data,
	size_t data_len)
{
	uint64_t page;

	w->got.entries++;
	if (node->flags & ~(N_BIG | N_SUB)) {
		return bad(w->a, "a node has flags 0x%x", node->flags);
	}
	if ((node->flags & N_SUB) != (w->is_names ? N_SUB : 0)) {
		return bad(w->a, "a tree of another kind");
	}
	if (node->flags & N_BIG) {
		memcpy(&page, data, 8);
		return w->is_names ? bad(w->a, "a name has a long value") :
			check_big(w, page, data_len);
	}
	if (w->is_free_list) {
		return check_free_row(w, data, data_len);
	}
	if (w->is_names) {
		if (data_len != sizeof(struct db) ||
			w->n_subs == sizeof(w->subs) / sizeof(w->subs[0])) {
			return bad(w->a, "the list of names is not one of ours");
		}
		memcpy(&w->subs[w->n_subs++], data, sizeof(struct db));
	}
	return 0;
}

/*
 * The node at offset at of a page: its bounds, and that it overlaps with no other. used has
 * a bit for every two bytes of a page.
 */
static int node_bounds(struct audit *a, const uint8_t *page, uint32_t at, uint32_t upper,
	int is_leaf, uint8_t *used, struct node_head *node, size_t *data_len)
{
	size_t size;

	if (at < upper || at % 2 != 0 || at + sizeof(*node) > a->page_size) {
		return bad(a, "a node lies outside of its page");
	}
	memcpy(node, page + at, sizeof(*node));
	*data_len = is_leaf ? node->lo | (size_t)node->hi << 16 : 0;
	size = sizeof(*node) + node->key_len;
	size += is_leaf && (node->flags & N_BIG) ? 8 : *data_len;
	size += size & 1;
	if (size > a->page_size - at) {
		return bad(a, "a node reaches over the end of its page");
	}
	for (size_t i = at / 2; i < (at + size) / 2; i++) {
		if (used[i / 8] & (1u << (i % 8))) {
			return bad(a, "two nodes overlap");
		}
		used[i / 8] |= (uint8_t)(1u << (i % 8));
	}
	return 0;
}

static int check_page(struct walk *w, uint64_t pgno, uint32_t level);

static int check_node(struct walk *w, const uint8_t *page, uint32_t at,
	const struct node_head *node, size_t data_len, uint32_t level, int first)
{
	const uint8_t *key = page + at + sizeof(*node);
	int is_leaf = level == w->want.depth;
	int rc = 0;

	if (is_leaf) {
		rc = next_key(w, key, node->key_len, 0);
		return rc == 0 ? check_data(w, node, key + node->key_len, data_len) : rc;
	}
	/* The first separator of a branch is not looked at by LMDB, and may be empty. */
	if (!first) {
		rc = next_key(w, key, node->key_len, 1);
	}
	return rc == 0 ? check_page(w, node->lo | (uint64_t)node->hi << 16 |
		(uint64_t)node->flags << 32, level + 1) : rc;
}

/* The children of a branch lie anywhere in the file: all are asked for before one is awaited. */
static void ask_for_children(struct audit *a, const uint8_t *page, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		struct node_head node;
		uint64_t pgno;
		uint16_t at;

		memcpy(&at, page + sizeof(struct page_head) + 2 * i, 2);
		if (at + sizeof(node) > a->page_size) {
			return;
		}
		memcpy(&node, page + at, sizeof(node));
		pgno = node.lo | (uint64_t)node.hi << 16 | (uint64_t)node.flags << 32;
		posix_fadvise(a->fd, (off_t)(pgno * a->page_size), a->page_size, POSIX_FADV_WILLNEED);
	}
}

static int check_nodes(struct walk *w, const uint8_t *page, const struct page_head *h,
	uint32_t level)
{
	uint8_t used[PAGE_MAX / 16] = { 0 };
	int is_leaf = level == w->want.depth;
	uint32_t n = (h->u.part.lower - (uint32_t)sizeof(*h)) / 2;
	int rc = 0;

	if (!is_leaf) {
		ask_for_children(w->a, page, n);
	}

	for (uint32_t i = 0; i < n && rc == 0; i++) {
		struct node_head node;
		size_t data_len = 0;
		uint16_t at;

		memcpy(&at, page + sizeof(*h) + 2 * i, 2);
		rc = node_bounds(w->a, page, at, h->u.part.upper, is_leaf, used, &node, &data_len);
		if (rc == 0) {
			rc = check_node(w, page, at, &node, data_len, level, i == 0);
		}
	}
	return rc;
}

/* level counts from 1, the root; leaves stand at level depth, which is bounded. */
static int check_page(struct walk *w, uint64_t pgno, uint32_t level)
{
	struct audit *a = w->a;
	uint8_t *page = a->bufs + (size_t)(level - 1) * a->page_size;
	int is_leaf = level == w->want.depth;
	struct page_head h;
	int rc = reach(a, pgno, 1);

	if (rc == 0) {
		rc = read_at(a, page, a->page_size, pgno * a->page_size);
	}
	if (rc != 0) {
		return rc;
	}
	memcpy(&h, page, sizeof(h));
	if (h.pgno != pgno || h.flags != (is_leaf ? P_LEAF : P_BRANCH)) {
		return bad(a, "page %llu is not what its place in the tree says",
			(unsigned long long)pgno);
	}
	if (h.u.part.lower < sizeof(h) || h.u.part.lower > h.u.part.upper ||
		h.u.part.upper > a->page_size || h.u.part.lower % 2 != 0) {
		return bad(a, "page %llu has bounds %u and %u", (unsigned long long)pgno,
			h.u.part.lower, h.u.part.upper);
	}
	/* A branch with one child, or an empty leaf, is nothing that LMDB leaves behind. */
	if (h.u.part.lower - sizeof(h) < (is_leaf ? 2u : 4u)) {
		return bad(a, "page %llu has too few nodes", (unsigned long long)pgno);
	}
	w->got.leaf_pages += is_leaf;
	w->got.branch_pages += !is_leaf;
	return check_nodes(w, page, &h, level);
}

static int check_tree(struct walk *w)
{
	int rc;

	if (w->want.root == NO_PAGE) {
		return w->want.entries == 0 && w->want.depth == 0 ? 0 : bad(w->a, "a tree has no root");
	}
	if (w->want.depth < 1 || w->want.depth > DEPTH_MAX) {
		return bad(w->a, "a tree has depth %u", w->want.depth);
	}
	rc = check_page(w, w->want.root, 1);
	if (rc != 0) {
		return rc;
	}
	if (w->got.entries != w->want.entries || w->got.leaf_pages != w->want.leaf_pages ||
		w->got.branch_pages != w->want.branch_pages ||
		w->got.overflow_pages != w->want.overflow_pages) {
		return bad(w->a, "a tree's own counts are wrong");
	}
	return 0;
}

static int check_snapshot(struct audit *a, const struct meta *meta)
{
	struct walk *w = pfx_calloc(2, sizeof(*w));
	struct walk *names = w, *other = w + 1;
	int rc;

	if (w == NULL) {
		return -ENOMEM;
	}
	*names = (struct walk){ .a = a, .want = meta->dbs[1], .is_names = 1 };
	*other = (struct walk){ .a = a, .want = meta->dbs[0], .integer_keys = 1, .is_free_list = 1 };
	rc = meta->dbs[1].flags != 0 ? bad(a, "the list of names has flags 0x%x",
		meta->dbs[1].flags) : check_tree(names);
	if (rc == 0) {
		rc = check_tree(other);
	}
	for (uint32_t i = 0; i < names->n_subs && rc == 0; i++) {
		*other = (struct walk){ .a = a, .want = names->subs[i] };
		rc = other->want.flags != 0 ? bad(a, "a tree has flags 0x%x", other->want.flags) :
			check_tree(other);
	}
	pfx_free(w);
	return rc;
}

/* Reads one meta page; where says at which byte. */
static int read_meta(struct audit *a, uint64_t where, uint64_t pgno, struct meta *out)
{
	struct page_head h;
	int rc = read_at(a, &h, sizeof(h), where);

	if (rc == 0) {
		rc = read_at(a, out, sizeof(*out), where + sizeof(h));
	}
	if (rc != 0) {
		return rc;
	}
	if (h.flags != P_META || h.pgno != pgno || out->magic != META_MAGIC) {
		return bad(a, "meta page %llu is damaged", (unsigned long long)pgno);
	}
	if (out->version != META_VERSION) {
		return pfx_fail(PFX_E_UNSUPPORTED, a->why, a->whylen, "meta page %llu is of version %u",
			(unsigned long long)pgno, out->version);
	}
	return 0;
}

static int check_file(struct audit *a)
{
	struct meta metas[2], *meta;
	int rc = read_meta(a, 0, 0, &metas[0]);

	/* Another version is one only if both say the same; else it is a flipped bit. */
	if (rc == PFX_E_UNSUPPORTED && (metas[0].dbs[0].pad < 512 ||
		read_meta(a, metas[0].dbs[0].pad, 1, &metas[1]) != rc ||
		metas[0].version != metas[1].version)) {
		return bad(a, "meta page 0 is damaged");
	}
	if (rc != 0) {
		return rc;
	}
	a->page_size = metas[0].dbs[0].pad;
	if (a->page_size < 512 || a->page_size > PAGE_MAX ||
		(a->page_size & (a->page_size - 1)) != 0) {
		return bad(a, "pages of %u bytes", a->page_size);
	}
	rc = read_meta(a, a->page_size, 1, &metas[1]);
	if (rc == PFX_E_UNSUPPORTED) {
		return bad(a, "meta page 1 is damaged");
	}
	if (rc != 0) {
		return rc;
	}
	/* As LMDB does: the newer of the two. Their frames must agree. */
	meta = &metas[metas[0].txnid < metas[1].txnid];
	if (metas[1].dbs[0].pad != a->page_size || metas[0].dbs[0].flags != metas[1].dbs[0].flags) {
		return bad(a, "the meta pages disagree");
	}
	/* Bit 3 says that keys are integers. The other bits are the environment's own flags. */
	if ((meta->dbs[0].flags & 0xff) != 8) {
		return bad(a, "the free list has flags 0x%x", meta->dbs[0].flags);
	}
	/* Pages at the end may be free and never written, so the file may be a little shorter. */
	a->n_pages = meta->last_page + 1;
	if (meta->last_page < 1 || meta->last_page > (1ull << 40) ||
		a->n_pages * a->page_size > meta->mapsize ||
		a->n_pages > 2 * (a->file_bytes / a->page_size) + 65536) {
		return bad(a, "the meta page tells of %llu pages", (unsigned long long)a->n_pages);
	}
	a->seen = pfx_calloc(1, (size_t)(a->n_pages / 8 + 1));
	a->bufs = pfx_malloc((size_t)DEPTH_MAX * a->page_size);
	if (a->seen == NULL || a->bufs == NULL) {
		return -ENOMEM;
	}
	return check_snapshot(a, meta);
}

int pfx_audit(const char *file, char *why, size_t whylen)
{
	struct audit a = { .why = why, .whylen = whylen };
	struct stat st;
	int rc;

	a.fd = open(file, O_RDONLY | O_CLOEXEC);
	if (a.fd < 0) {
		return errno == ENOENT ? 0 :
			pfx_fail(-errno, why, whylen, "cannot be opened: %s", strerror(errno));
	}
	/* Pages are read where they lie: what stands beside one is of no use. */
	posix_fadvise(a.fd, 0, 0, POSIX_FADV_RANDOM);
	rc = fstat(a.fd, &st) != 0 ? -errno : 0;
	if (rc == 0 && st.st_size > 0) {
		a.file_bytes = (uint64_t)st.st_size;
		rc = check_file(&a);
	}
	if (rc == -ENOMEM) {
		pfx_fail(rc, why, whylen, "out of memory");
	}
	pfx_free(a.seen);
	pfx_free(a.bufs);
	close(a.fd);
	return rc;
}

void pfx_audit_value_head(uint8_t out[PFX_AUDIT_HEAD], uint64_t pgno, size_t n,
	uint32_t page_size)
{
	struct page_head h = { .pgno = pgno, .flags = P_OVERFLOW,
		.u.pages = (uint32_t)pages_of(n, page_size) };

	memcpy(out, &h, sizeof(h));
}

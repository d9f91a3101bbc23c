/*
 * Room on the disk for deletions. LMDB writes the pages that a deletion changes before those that
 * it frees can be used: once others, or the store itself, have filled the disk, a store of many
 * records could not even be made smaller. So a file of its own holds a little room, and goes when a
 * deletion finds no other.
 */
#include "persist/lmdb_priv.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "base/alloc.h"

/* A deletion changes at most a path of each tree: 64 pages are several times that. */
#define SPARE_BYTES (64 * PAGE)
#define SPARE_LEAST (8 * PAGE)

void pfx_lmdb_keep_spare(struct lmdb_store *s)
{
	char *path;
	int fd, rc = -1;

	if (s->spare_bytes >= SPARE_BYTES) {
		return;
	}
	path = pfx_lmdb_path(s->folder, SPARE_FILE);
	fd = path == NULL ? -1 : open(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
	if (fd >= 0) {
		/* What deletions have taken of a full disk is not there any more. */
		for (uint32_t n = SPARE_BYTES; rc != 0 && n >= SPARE_LEAST; n /= 2) {
			rc = posix_fallocate(fd, 0, n) != 0 ? -1 : ftruncate(fd, n);
			s->spare_bytes = rc == 0 ? n : 0;
		}
		close(fd);
	}
	if (fd >= 0 && rc != 0) {
		unlink(path);
	}
	pfx_free(path);
}

int pfx_lmdb_give_spare(struct lmdb_store *s)
{
	char *path = pfx_lmdb_path(s->folder, SPARE_FILE);
	int given = path != NULL && unlink(path) == 0;

	s->spare_bytes = 0;
	pfx_free(path);
	return given;
}

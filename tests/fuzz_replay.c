/*
 * Stands in for libFuzzer's main: replays the corpus of the target that it is linked with,
 * so that a target cannot rot and a crash once found stays fixed. The corpus is the folder
 * $top_srcdir/tests/corpus/NAME for a program called fuzz_NAME, or the arguments.
 */
#ifndef PFX_FUZZING /* then main is libFuzzer's */

#include "tests/fuzz.h"

#include <dirent.h>
#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "tests/tap.h"

/* Returns owned bytes (free) in memory of exactly that size, so that ASan sees its end. */
static uint8_t *read_file(const char *path, size_t *n)
{
	FILE *f = fopen(path, "rb");
	struct stat st;
	uint8_t *p = NULL;

	*n = 0;
	if (f != NULL && fstat(fileno(f), &st) == 0 && S_ISREG(st.st_mode)) {
		*n = (size_t)st.st_size;
		p = malloc(*n ? *n : 1);
		if (p != NULL && fread(p, 1, *n, f) != *n) {
			free(p);
			p = NULL;
		}
	}
	if (f != NULL) {
		fclose(f);
	}
	return p;
}

static void replay(const char *path)
{
	size_t n;
	uint8_t *bytes = read_file(path, &n);

	if (!ok(bytes != NULL, "%s: read", path)) {
		return;
	}
	is_int(LLVMFuzzerTestOneInput(bytes, n), 0, "%s: survived", path);
	free(bytes);
}

static void replay_folder(const char *folder)
{
	DIR *dir = opendir(folder);
	struct dirent *e;
	char path[4096 + 256];
	int n = 0;

	if (dir == NULL) {
		ok(0, "%s: %s", folder, strerror(errno));
		return;
	}
	while ((e = readdir(dir)) != NULL) {
		if (e->d_name[0] == '.') {
			continue;
		}
		snprintf(path, sizeof(path), "%s/%s", folder, e->d_name);
		replay(path);
		n++;
	}
	closedir(dir);
	ok(n > 0, "%s: has %d files", folder, n);
}

int main(int argc, char **argv)
{
	const char *top = getenv("top_srcdir"), *name = strrchr(argv[0], '/');
	char folder[4096];

	if (argc > 1) {
		for (int i = 1; i < argc; i++) {
			replay(argv[i]);
		}
		return tap_done();
	}
	name = name != NULL ? name + 1 : argv[0];
	snprintf(folder, sizeof(folder), "%s/tests/corpus/%s", top != NULL ? top : ".",
		strncmp(name, "fuzz_", 5) == 0 ? name + 5 : name);
	replay_folder(folder);
	return tap_done();
}

#endif

/* engine/gguf: what it hands out of a good file, and that no broken one gets through. */
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/error.h"
#include "engine/gguf.h"
#include "tests/gguf_walk.h"
#include "tests/gguf_write.h"
#include "tests/tap.h"

static struct pfx_memfile file;

static void sample(struct pfx_gw *w)
{
	static const char *const words[] = { "a", "bc", "", "d\0e" };
	static const size_t lens[] = { 1, 2, 0, 3 };
	static const int32_t ints[] = { 1, -2, 3 };
	static const float floats[] = { 0.5f, -1.5f };
	static const uint64_t dims2[] = { 32, 2 }, dims1[] = { 5 };
	static uint8_t data[256];

	for (size_t i = 0; i < sizeof(data); i++) {
		data[i] = (uint8_t)(i * 7 + 1);
	}
	memset(w, 0, sizeof(*w));
	pfx_gw_str(w, "general.architecture", "llama");
	pfx_gw_raw(w, "a.u8", 0, "\xff", 1);
	pfx_gw_raw(w, "a.i8", 1, "\xff", 1);
	pfx_gw_raw(w, "a.u16", 2, "\x01\x02", 2);
	pfx_gw_raw(w, "a.i16", 3, "\x01\x02", 2);
	pfx_gw_u32(w, "a.u32", 4000000000u);
	pfx_gw_raw(w, "a.i32", 5, "\x07\0\0\0", 4);
	pfx_gw_f32(w, "a.f32", 2.5f);
	pfx_gw_bool(w, "a.bool", 1);
	pfx_gw_raw(w, "a.u64", 10, "\0\0\0\0\1\0\0\0", 8);
	pfx_gw_raw(w, "a.i64", 11, "\x09\0\0\0\0\0\0\0", 8);
	pfx_gw_raw(w, "a.f64", 12, "\0\0\0\0\0\0\xf0\x3f", 8);
	pfx_gw_raw(w, "a.huge", 12, "\0\0\0\0\0\0\xf0\x7e", 8);
	pfx_gw_strs(w, "a.strs", words, lens, 4);
	pfx_gw_i32s(w, "a.i32s", ints, 3);
	pfx_gw_f32s(w, "a.f32s", floats, 2);
	pfx_gw_raw(w, "a.u32s", 9, "\4\0\0\0\1\0\0\0\0\0\0\0\xff\xff\xff\xff", 16);
	pfx_gw_raw(w, "a.bools", 9, "\7\0\0\0\2\0\0\0\0\0\0\0\1\0", 14);
	pfx_gw_tensor(w, "t.q4_0", PFX_Q4_0, 2, dims2, data, 36);
	pfx_gw_tensor(w, "t.f32", PFX_F32, 1, dims1, data, 20);
}

static int open_bytes(struct pfx_gguf **g, const void *bytes, size_t n, char *err, size_t errlen)
{
	if (pfx_memfile_set(&file, bytes, n) != 0) {
		printf("Bail out! cannot write a test file\n");
		exit(1);
	}
	return pfx_gguf_open(g, file.path, err, errlen);
}

static void test_scalars(const struct pfx_gguf *g)
{
	char err[300] = "";
	struct pfx_str s;
	uint32_t u;
	float f;
	int b;

	ok(pfx_gguf_str(g, "general.architecture", &s, NULL, 0) == 0 && s.n == 5 &&
		memcmp(s.s, "llama", 5) == 0, "string");
	ok(pfx_gguf_u32(g, "a.u8", &u, NULL, 0) == 0 && u == 255, "u8");
	ok(pfx_gguf_u32(g, "a.u16", &u, NULL, 0) == 0 && u == 0x201, "u16");
	ok(pfx_gguf_u32(g, "a.i16", &u, NULL, 0) == 0 && u == 0x201, "i16 that is positive");
	ok(pfx_gguf_u32(g, "a.u32", &u, NULL, 0) == 0 && u == 4000000000u, "u32");
	ok(pfx_gguf_u32(g, "a.i32", &u, NULL, 0) == 0 && u == 7, "i32");
	ok(pfx_gguf_u32(g, "a.i64", &u, NULL, 0) == 0 && u == 9, "i64");
	is_int(pfx_gguf_u32(g, "a.i8", &u, err, sizeof(err)), PFX_E_FORMAT, "negative is refused");
	is_int(pfx_gguf_u32(g, "a.u64", &u, err, sizeof(err)), PFX_E_FORMAT, "2^32 is refused");
	ok(strstr(err, "'a.u64'") != NULL, "with words: %s", err);
	ok(pfx_gguf_f32(g, "a.f32", &f, NULL, 0) == 0 && f == 2.5f, "f32");
	ok(pfx_gguf_f32(g, "a.f64", &f, NULL, 0) == 0 && f == 1.0f, "f64");
	is_int(pfx_gguf_f32(g, "a.huge", &f, NULL, 0), PFX_E_FORMAT, "f64 beyond f32");
	ok(pfx_gguf_bool(g, "a.bool", &b, NULL, 0) == 0 && b == 1, "bool");
	is_int(pfx_gguf_bool(g, "a.u8", &b, NULL, 0), PFX_E_FORMAT, "u8 is no bool");
	is_int(pfx_gguf_f32(g, "a.u32", &f, err, sizeof(err)), PFX_E_FORMAT, "u32 is no float");
	ok(strstr(err, "of type u32, expected a floating-point number") != NULL, "with words: %s",
		err);
	is_int(pfx_gguf_u32(g, "a.i32s", &u, err, sizeof(err)), PFX_E_FORMAT, "array for a scalar");
	ok(strstr(err, "an array of i32, expected") != NULL, "with words: %s", err);
	is_int(pfx_gguf_u32(g, "nope", &u, err, sizeof(err)), -ENOENT, "absent key");
	ok(strstr(err, "key 'nope' is missing") != NULL, "with words: %s", err);
}

static void test_arrays(const struct pfx_gguf *g)
{
	const struct pfx_str *strs = NULL;
	const int32_t *ints = NULL;
	const float *floats = NULL;
	char err[300] = "";
	uint32_t n = 0;

	ok(pfx_gguf_strs(g, "a.strs", &strs, &n, NULL, 0) == 0 && n == 4, "strings");
	ok(strs[1].n == 2 && memcmp(strs[1].s, "bc", 2) == 0 && strs[2].n == 0, "their bytes");
	ok(strs[3].n == 3 && memcmp(strs[3].s, "d\0e", 3) == 0, "NUL inside a string");
	ok(pfx_gguf_i32s(g, "a.i32s", &ints, &n, NULL, 0) == 0 && n == 3 && ints[1] == -2, "i32s");
	ok(pfx_gguf_f32s(g, "a.f32s", &floats, &n, NULL, 0) == 0 && n == 2 && floats[1] == -1.5f,
		"f32s");
	is_int(pfx_gguf_i32s(g, "a.u32s", &ints, &n, err, sizeof(err)), PFX_E_FORMAT,
		"u32 array with a value beyond i32");
	is_int(pfx_gguf_f32s(g, "a.i32s", &floats, &n, err, sizeof(err)), PFX_E_FORMAT,
		"i32s are no f32s");
	is_int(pfx_gguf_strs(g, "a.u32", &strs, &n, err, sizeof(err)), PFX_E_FORMAT,
		"scalar for an array");
	is_int(pfx_gguf_strs(g, "a.none", &strs, &n, err, sizeof(err)), -ENOENT, "absent array");
}

static void test_tensors(const struct pfx_gguf *g)
{
	const struct pfx_gguf_tensor *t = pfx_gguf_tensor(g, "t.f32");

	is_int(pfx_gguf_n_tensors(g), 2, "two tensors");
	ok(t != NULL && t->type == PFX_F32 && t->n_dims == 1 && t->dims[0] == 5 &&
			t->dims[1] == 1 && t->bytes == 20,
		"f32 tensor");
	ok((uintptr_t)t->data % 32 == 0 && ((const uint8_t *)t->data)[19] == 19 * 7 + 1,
		"its data");
	t = pfx_gguf_tensor(g, "t.q4_0");
	ok(t != NULL && t->bytes == 36 && t == pfx_gguf_tensor_at(g, 0), "q4_0 tensor");
	ok(pfx_gguf_tensor(g, "t.") == NULL && pfx_gguf_tensor_at(g, 2) == NULL, "no other");
}

static void test_good(const struct pfx_buf *image)
{
	struct pfx_gguf *g, *again;
	char err[300] = "";
	uint8_t a[16], b[16];

	is_int(open_bytes(&g, image->data, image->len, err, sizeof(err)), 0, "opens (%s)", err);
	test_scalars(g);
	test_arrays(g);
	test_tensors(g);
	ok(strcmp(pfx_gguf_path(g), file.path) == 0, "path");
	pfx_gguf_digest(g, a);
	pfx_gguf_digest(g, b);
	ok(memcmp(a, b, 16) == 0, "digest stays");
	pfx_gguf_close(g);
	image->data[image->len - 1] ^= 1;
	is_int(open_bytes(&again, image->data, image->len, err, sizeof(err)), 0, "opens again");
	image->data[image->len - 1] ^= 1;
	pfx_gguf_digest(again, b);
	ok(memcmp(a, b, 16) != 0, "digest sees one bit of tensor data");
	pfx_gguf_close(again);
	pfx_gguf_close(NULL);
}

/* One bad thing in an otherwise good file, and what the message must say. */
static void refuse(struct pfx_gw *w, int code, const char *words, const char *what)
{
	struct pfx_buf image = PFX_BUF_INIT;
	struct pfx_gguf *g = NULL;
	char err[400] = "";

	pfx_gw_image(w, &image);
	is_int(open_bytes(&g, image.data, image.len, err, sizeof(err)), code, "%s is refused",
		what);
	ok(strstr(err, words) != NULL && strstr(err, file.path) == err, "says \"%s\": %s", words,
		err);
	pfx_gguf_close(g);
	pfx_buf_free(&image);
	pfx_gw_free(w);
}

static void test_bad_keys(void)
{
	struct pfx_gw w;

	sample(&w);
	pfx_gw_u32(&w, "a.u32", 1);
	refuse(&w, PFX_E_FORMAT, "key 'a.u32' stands in the file twice", "a key twice");
	sample(&w);
	pfx_gw_u32(&w, "", 1);
	refuse(&w, PFX_E_FORMAT, "name of 0 bytes, expected 1 to", "an empty key");
	sample(&w);
	pfx_gw_raw(&w, "odd", 13, "", 0);
	refuse(&w, PFX_E_FORMAT, "key 'odd' has value type 13", "an unknown value type");
	sample(&w);
	pfx_gw_raw(&w, "odd", 9, "\x0d\0\0\0\0\0\0\0\0\0\0\0", 12);
	refuse(&w, PFX_E_FORMAT, "key 'odd' has value type 13", "an unknown element type");
	sample(&w);
	pfx_gw_raw(&w, "odd", 9, "\x09\0\0\0\1\0\0\0\0\0\0\0", 12);
	refuse(&w, PFX_E_UNSUPPORTED, "array of arrays", "a nested array");
	sample(&w);
	pfx_gw_raw(&w, "odd", 9, "\x06\0\0\0\0\0\0\0\0\0\0\x40", 12);
	refuse(&w, PFX_E_TRUNCATED, "array of 4611686018427387904 elements",
		"a length that overflows");
	sample(&w);
	pfx_gw_raw(&w, "odd", 9, "\x08\0\0\0\xff\xff\0\0\0\0\0\0", 12);
	refuse(&w, PFX_E_TRUNCATED, "array of 65535 elements of type string", "too many strings");
	sample(&w);
	pfx_gw_raw(&w, "odd", 8, "\xff\xff\xff\xff\xff\xff\xff\xff", 8);
	refuse(&w, PFX_E_TRUNCATED, "string of 18446744073709551615 bytes", "a string without end");
	sample(&w);
	pfx_gw_raw(&w, "odd", 7, "\2", 1);
	refuse(&w, PFX_E_FORMAT, "holds 2 as a bool", "a bool of 2");
	sample(&w);
	pfx_gw_raw(&w, "odd", 9, "\x07\0\0\0\1\0\0\0\0\0\0\0\3", 13);
	refuse(&w, PFX_E_FORMAT, "holds 3 as a bool", "a bool of 3 in an array");
	sample(&w);
	pfx_gw_raw(&w, "bad\n\x80", 13, "", 0);
	refuse(&w, PFX_E_FORMAT, "key 'bad?" "?'", "a name that is not fit to print");
	for (uint32_t bad = 0; bad < 4; bad++) {
		static const uint32_t values[] = { 0, 4, 33, 1u << 21 };
		sample(&w);
		pfx_gw_u32(&w, "general.alignment", values[bad]);
		refuse(&w, PFX_E_FORMAT, "'general.alignment' is", "an odd alignment");
	}
	sample(&w);
	pfx_gw_str(&w, "general.alignment", "32");
	refuse(&w, PFX_E_FORMAT, "'general.alignment' is of type string",
		"an alignment of letters");
}

static void test_bad_tensors(void)
{
	static const uint64_t odd[] = { 33, 2 }, zero[] = { 32, 0 };
	static const uint64_t wide[] = {1u << 31, 1u << 31, 1u << 31, 4}, tall[] = {32, 1u << 30};
	static const uint64_t five[] = { 1, 1, 1, 1, 1 }, one[] = { 1 };
	char name[80];
	struct pfx_gw w;

	sample(&w);
	pfx_gw_tensor(&w, "t.f32", PFX_F32, 1, one, "abcd", 4);
	refuse(&w, PFX_E_FORMAT, "tensor 't.f32' stands in the file twice", "a tensor twice");
	sample(&w);
	pfx_gw_tensor(&w, "odd", PFX_Q4_0, 2, odd, "", 0);
	refuse(&w, PFX_E_FORMAT, "tensor 'odd' is Q4_0 with rows of 33", "half a block");
	sample(&w);
	pfx_gw_tensor(&w, "odd", PFX_F32, 2, zero, "", 0);
	refuse(&w, PFX_E_FORMAT, "tensor 'odd' has dimension 1 of size 0", "an empty tensor");
	sample(&w);
	pfx_gw_tensor(&w, "odd", PFX_F32, 4, wide, "", 0);
	refuse(&w, PFX_E_FORMAT, "tensor 'odd' has dimensions", "a size beyond 64 bits");
	sample(&w);
	pfx_gw_tensor(&w, "odd", PFX_F32, 2, tall, "", 0);
	refuse(&w, PFX_E_TRUNCATED, "tensor 'odd' takes 137438953472 bytes",
		"data beyond the file");
	sample(&w);
	pfx_gw_tensor(&w, "odd", PFX_F32, 5, five, "abcd", 4);
	refuse(&w, PFX_E_FORMAT, "tensor 'odd' has 5 dimensions", "five dimensions");
	sample(&w);
	pfx_gw_tensor(&w, "odd", PFX_F32, 0, one, "abcd", 4);
	refuse(&w, PFX_E_FORMAT, "tensor 'odd' has 0 dimensions", "no dimensions");
	sample(&w);
	pfx_gw_tensor(&w, "odd", 18, 1, one, "abcd", 4);
	refuse(&w, PFX_E_UNSUPPORTED, "tensor 'odd' has type 18, expected F32", "an unknown type");
	memset(name, 'x', 65);
	name[65] = '\0';
	sample(&w);
	pfx_gw_tensor(&w, name, PFX_F32, 1, one, "abcd", 4);
	refuse(&w, PFX_E_FORMAT, "name of 65 bytes, expected 1 to 64", "a long name");
	sample(&w);
	pfx_gw_u32(&w, "general.alignment", 128);
	refuse(&w, PFX_E_FORMAT, "expected a multiple of the alignment 128",
		"an offset off the grid");
}

static void test_headers(const struct pfx_buf *image)
{
	static const struct {
		size_t at;
		const char *bytes;
		size_t n;
		int code;
		const char *words;
	} cases[] = {
		{0, "GGML", 4, PFX_E_FORMAT, "is no GGUF file"},
		{4, "\1\0\0\0", 4, PFX_E_UNSUPPORTED, "GGUF version 1, expected 2 or 3"},
		{4, "\4\0\0\0", 4, PFX_E_UNSUPPORTED, "GGUF version 4"},
		{4, "\0\0\0\3", 4, PFX_E_UNSUPPORTED, "is a big-endian GGUF file"},
		{4, "\0\0\0\0", 4, PFX_E_UNSUPPORTED, "GGUF version 0"},
		{8, "\xff\xff\0\0\0\0\0\0", 8, PFX_E_FORMAT,
			"says 65535 tensors, expected at most"},
		{8, "\0\0\0\0\0\0\0\x80", 8, PFX_E_FORMAT, "9223372036854775808 tensors"},
		{16, "\xff\xff\xff\xff\xff\xff\xff\xff", 8, PFX_E_FORMAT,
			"18446744073709551615 keys"},
	};
	struct pfx_buf copy = PFX_BUF_INIT;
	struct pfx_gguf *g;
	char err[400];

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		pfx_buf_reset(&copy);
		pfx_buf_add(&copy, image->data, image->len);
		memcpy(copy.data + cases[i].at, cases[i].bytes, cases[i].n);
		is_int(open_bytes(&g, copy.data, copy.len, err, sizeof(err)), cases[i].code,
			"header %zu", i);
		ok(strstr(err, cases[i].words) != NULL, "says \"%s\": %s", cases[i].words, err);
	}
	memcpy(copy.data, image->data, 24);
	copy.data[4] = 2;
	is_int(open_bytes(&g, copy.data, copy.len, err, sizeof(err)), 0, "version 2 opens");
	pfx_gguf_close(g);
	pfx_buf_free(&copy);
}

/* 0 when it was refused with words that name the file. */
static int try(const void *bytes, size_t n, int *opened)
{
	struct pfx_gguf *g;
	char err[400] = "";

	if (open_bytes(&g, bytes, n, err, sizeof(err)) == 0) {
		pfx_gguf_walk(g);
		pfx_gguf_close(g);
		(*opened)++;
		return 0;
	}
	return g == NULL && strncmp(err, file.path, strlen(file.path)) == 0 ? 0 : -1;
}

static void test_truncated(const struct pfx_buf *image)
{
	int bad = 0, opened = 0;

	for (size_t n = 0; n < image->len; n++) {
		/* Memory of the exact size, though the reader maps a file: walks stay in it. */
		bad += try(image->data, n, &opened) != 0;
	}
	is_int(bad, 0, "each of %zu truncations is refused in words", image->len);
	is_int(opened, 0, "and none opens");
}

static void test_flipped(const struct pfx_buf *image)
{
	uint64_t live = pfx_alloc_live();
	int bad = 0, opened = 0, tries = 0;

	for (size_t at = 0; at < image->len; at++) {
		for (int bit = 0; bit < 9; bit++) {
			char mask = (char)(bit < 8 ? 1 << bit : 0xff);
			image->data[at] ^= mask;
			bad += try(image->data, image->len, &opened) != 0;
			image->data[at] ^= mask;
			tries++;
		}
	}
	is_int(bad, 0, "%d flips: opened (%d) or refused in words", tries, opened);
	is_int((long long)pfx_alloc_live(), (long long)live, "nothing leaks");
}

static void test_paths(void)
{
	struct pfx_gguf *g = NULL;
	char dir[] = "/tmp/prefixd-gguf-XXXXXX", fifo[64], err[400] = "";

	is_int(pfx_gguf_open(&g, "/nonexistent/x.gguf", err, sizeof(err)), -ENOENT, "missing file");
	ok(strstr(err, "/nonexistent/x.gguf: No such file") != NULL, "with words: %s", err);
	is_int(pfx_gguf_open(&g, "/dev/null", err, sizeof(err)), PFX_E_FORMAT, "a device");
	ok(strstr(err, "no regular file") != NULL, "with words: %s", err);
	is_int(open_bytes(&g, "", 0, err, sizeof(err)), PFX_E_TRUNCATED, "an empty file");
	ok(strstr(err, "is empty") != NULL, "with words: %s", err);
	if (mkdtemp(dir) == NULL) {
		skip(3, "no temporary directory");
		return;
	}
	is_int(pfx_gguf_open(&g, dir, err, sizeof(err)), PFX_E_FORMAT, "a directory");
	ok(strstr(err, "a directory") != NULL, "with words: %s", err);
	snprintf(fifo, sizeof(fifo), "%s/fifo", dir);
	if (mkfifo(fifo, 0600) == 0) {
		is_int(pfx_gguf_open(&g, fifo, err, sizeof(err)), PFX_E_FORMAT,
			"a FIFO does not hang");
		unlink(fifo);
	} else {
		skip(1, "no FIFO");
	}
	rmdir(dir);
}

static void test_no_memory(const struct pfx_buf *image)
{
	uint64_t live = pfx_alloc_live();
	struct pfx_gguf *g;
	int failed = 0, opened = 0;

	for (uint64_t seed = 0; seed < 300; seed++) {
		char err[400] = "";
		if (pfx_memfile_set(&file, image->data, image->len) != 0) {
			break;
		}
		pfx_alloc_fail(seed, 8);
		int rc = pfx_gguf_open(&g, file.path, err, sizeof(err));
		pfx_alloc_fail(0, 0);
		failed += rc == -ENOMEM && err[0] != '\0';
		opened += rc == 0;
		pfx_gguf_close(g);
	}
	is_int(failed + opened, 300, "with failing memory: %d opened, %d refused", opened, failed);
	is_int((long long)pfx_alloc_live(), (long long)live, "nothing leaks");
}

int main(void)
{
	struct pfx_buf image = PFX_BUF_INIT;
	struct pfx_gw w;

	if (pfx_memfile_open(&file) != 0) {
		printf("1..0 # SKIP no memfd\n");
		return 0;
	}
	sample(&w);
	pfx_gw_image(&w, &image);
	pfx_gw_free(&w);
	test_good(&image);
	test_headers(&image);
	test_bad_keys();
	test_bad_tensors();
	test_truncated(&image);
	test_flipped(&image);
	test_paths();
	test_no_memory(&image);
	pfx_buf_free(&image);
	pfx_memfile_close(&file);
	return tap_done();
}

/*
 * Case, as Python's str methods know it: utf8proc maps one character to one, and the table
 * adds those that become several (SpecialCasing.txt of the Unicode standard).
 */

#include <string.h>
#include <utf8proc.h>

#include "engine/jinja_str.h"

struct special {
	uint16_t cp;
	uint16_t upper[3];
};

/* U+1F80..U+1FAF are worked out: a capital and an iota. */
static const struct special specials[] = {
	{ 0xDF, { 'S', 'S' } }, { 0x149, { 0x2BC, 'N' } }, { 0x1F0, { 'J', 0x30C } },
	{ 0x390, { 0x399, 0x308, 0x301 } }, { 0x3B0, { 0x3A5, 0x308, 0x301 } },
	{ 0x587, { 0x535, 0x552 } }, { 0x1E96, { 'H', 0x331 } }, { 0x1E97, { 'T', 0x308 } },
	{ 0x1E98, { 'W', 0x30A } }, { 0x1E99, { 'Y', 0x30A } }, { 0x1E9A, { 'A', 0x2BE } },
	{ 0x1F50, { 0x3A5, 0x313 } }, { 0x1F52, { 0x3A5, 0x313, 0x300 } },
	{ 0x1F54, { 0x3A5, 0x313, 0x301 } }, { 0x1F56, { 0x3A5, 0x313, 0x342 } },
	{ 0x1FB2, { 0x1FBA, 0x399 } }, { 0x1FB3, { 0x391, 0x399 } }, { 0x1FB4, { 0x386, 0x399 } },
	{ 0x1FB6, { 0x391, 0x342 } }, { 0x1FB7, { 0x391, 0x342, 0x399 } },
	{ 0x1FBC, { 0x391, 0x399 } }, { 0x1FC2, { 0x1FCA, 0x399 } }, { 0x1FC3, { 0x397, 0x399 } },
	{ 0x1FC4, { 0x389, 0x399 } }, { 0x1FC6, { 0x397, 0x342 } },
	{ 0x1FC7, { 0x397, 0x342, 0x399 } }, { 0x1FCC, { 0x397, 0x399 } },
	{ 0x1FD2, { 0x399, 0x308, 0x300 } }, { 0x1FD3, { 0x399, 0x308, 0x301 } },
	{ 0x1FD6, { 0x399, 0x342 } }, { 0x1FD7, { 0x399, 0x308, 0x342 } },
	{ 0x1FE2, { 0x3A5, 0x308, 0x300 } }, { 0x1FE3, { 0x3A5, 0x308, 0x301 } },
	{ 0x1FE4, { 0x3A1, 0x313 } }, { 0x1FE6, { 0x3A5, 0x342 } },
	{ 0x1FE7, { 0x3A5, 0x308, 0x342 } }, { 0x1FF2, { 0x1FFA, 0x399 } },
	{ 0x1FF3, { 0x3A9, 0x399 } }, { 0x1FF4, { 0x38F, 0x399 } }, { 0x1FF6, { 0x3A9, 0x342 } },
	{ 0x1FF7, { 0x3A9, 0x342, 0x399 } }, { 0x1FFC, { 0x3A9, 0x399 } },
	{ 0xFB00, { 'F', 'F' } }, { 0xFB01, { 'F', 'I' } }, { 0xFB02, { 'F', 'L' } },
	{ 0xFB03, { 'F', 'F', 'I' } }, { 0xFB04, { 'F', 'F', 'L' } }, { 0xFB05, { 'S', 'T' } },
	{ 0xFB06, { 'S', 'T' } }, { 0xFB13, { 0x544, 0x546 } }, { 0xFB14, { 0x544, 0x535 } },
	{ 0xFB15, { 0x544, 0x53B } }, { 0xFB16, { 0x54E, 0x546 } }, { 0xFB17, { 0x544, 0x53D } },
};

/* Fills up[] and returns how many; 0 when cp is not special. */
static int special_upper(uint32_t cp, uint32_t up[3])
{
	int n = 0;

	if (cp >= 0x1F80 && cp <= 0x1FAF) {
		up[0] = (cp < 0x1F90 ? 0x1F08 : cp < 0x1FA0 ? 0x1F28 : 0x1F68) + (cp & 7);
		up[1] = 0x399;
		return 2;
	}
	for (size_t i = 0; i < sizeof(specials) / sizeof(specials[0]); i++) {
		if (specials[i].cp == cp) {
			for (; n < 3 && specials[i].upper[n] != 0; n++) {
				up[n] = specials[i].upper[n];
			}
			break;
		}
	}
	return n;
}

static void put_upper(struct pfx_jbuild *b, uint32_t cp, int client)
{
	uint32_t up[3];
	int n = cp < 0xDF ? 0 : special_upper(cp, up);

	if (n == 0) {
		pfx_j_put_cp(b, (uint32_t)utf8proc_toupper((utf8proc_int32_t)cp), client);
	}
	for (int i = 0; i < n; i++) {
		pfx_j_put_cp(b, up[i], client);
	}
}

static void put_title(struct pfx_jbuild *b, uint32_t cp, int client)
{
	uint32_t up[3];
	int n = cp < 0xDF ? 0 : special_upper(cp, up);

	/* The Greek ones with a titlecase of their own end in 3 or C, or lie below U+1FB0. */
	if (n == 0 || (cp >= 0x1F80 && cp <= 0x1FAF) ||
		(cp >= 0x1FB0 && cp <= 0x1FFF && ((cp & 15) == 3 || (cp & 15) == 12) && n == 2)) {
		pfx_j_put_cp(b, (uint32_t)utf8proc_totitle((utf8proc_int32_t)cp), client);
		return;
	}
	pfx_j_put_cp(b, up[0], client);
	for (int i = 1; i < n; i++) {
		if (up[i] == 0x399) {
			up[i] = 0x345;
		} else if (cp != 0x149) {
			up[i] = (uint32_t)utf8proc_tolower((utf8proc_int32_t)up[i]);
		}
		pfx_j_put_cp(b, up[i], client);
	}
}

static utf8proc_category_t category(uint32_t cp)
{
	return utf8proc_category((utf8proc_int32_t)cp);
}

static int is_upper(uint32_t cp)
{
	return category(cp) == UTF8PROC_CATEGORY_LU || (cp >= 0x2160 && cp <= 0x216F) ||
		(cp >= 0x24B6 && cp <= 0x24CF);
}

static int is_lower(uint32_t cp)
{
	return category(cp) == UTF8PROC_CATEGORY_LL || cp == 0xAA || cp == 0xBA ||
		(cp >= 0x2170 && cp <= 0x217F) || (cp >= 0x24D0 && cp <= 0x24E9);
}

static int is_cased(uint32_t cp)
{
	return is_upper(cp) || is_lower(cp) || category(cp) == UTF8PROC_CATEGORY_LT;
}

/* What the rule of the final sigma looks through. */
static int is_ignorable(uint32_t cp)
{
	switch (category(cp)) {
	case UTF8PROC_CATEGORY_MN:
	case UTF8PROC_CATEGORY_ME:
	case UTF8PROC_CATEGORY_CF:
	case UTF8PROC_CATEGORY_LM:
	case UTF8PROC_CATEGORY_SK:
		return 1;
	default:
		return cp == '\'' || cp == '.' || cp == ':' || cp == 0xB7 || cp == 0x2018 ||
			cp == 0x2019 || cp == 0x2024 || cp == 0x2027;
	}
}

static int is_final_sigma(struct pfx_jctx *c, const struct pfx_jstr *s, size_t at)
{
	size_t len, i = at;
	uint32_t cp;

	do {
		if (i == 0 || !pfx_j_step(c, 1)) {
			return 0;
		}
		for (i--; i > 0 && ((unsigned char)s->s[i] & 0xC0) == 0x80; i--) {
		}
		cp = pfx_j_cp(s, i, &len);
	} while (is_ignorable(cp));
	if (!is_cased(cp)) {
		return 0;
	}
	for (i = at + 2; i < s->n && pfx_j_step(c, 1); i += len) {
		cp = pfx_j_cp(s, i, &len);
		if (!is_ignorable(cp)) {
			return !is_cased(cp);
		}
	}
	return 1;
}

static void put_lower(struct pfx_jbuild *b, const struct pfx_jstr *s, size_t at, uint32_t cp,
	int client)
{
	if (cp == 0x3A3) {
		cp = is_final_sigma(b->c, s, at) ? 0x3C2 : 0x3C3;
	} else if (cp == 0x130) {
		pfx_j_put_cp(b, 'i', client);
		cp = 0x307;
	} else {
		cp = (uint32_t)utf8proc_tolower((utf8proc_int32_t)cp);
	}
	pfx_j_put_cp(b, cp, client);
}

/* The characters that jinja2's title filter starts a word after. */
static int starts_word(uint32_t cp)
{
	return pfx_j_is_space(cp) || cp == '-' || cp == '(' || cp == '{' || cp == '[' || cp == '<';
}

const struct pfx_jstr *pfx_j_case(struct pfx_jctx *c, const struct pfx_jstr *s, enum pfx_jcase to)
{
	struct pfx_jbuild b = pfx_j_build(c);
	int start = 1, client;
	size_t len;
	uint32_t cp;

	if (s == NULL || !pfx_j_step(c, s->n / 8)) {
		return NULL;
	}
	b.safe = s->safe;
	for (size_t at = 0; at < s->n && c->rc == 0; at += len) {
		cp = pfx_j_cp(s, at, &len);
		client = pfx_j_mark(s, at);
		if (to == PFX_J_UPPER || (to == PFX_J_SWAPCASE && is_lower(cp)) ||
			(to == PFX_J_TITLE_FILTER && start)) {
			put_upper(&b, cp, client);
		} else if ((to == PFX_J_TITLE || to == PFX_J_CAPITALIZE) && start) {
			put_title(&b, cp, client);
		} else if (to == PFX_J_SWAPCASE && !is_upper(cp)) {
			pfx_j_put_cp(&b, cp, client);
		} else {
			put_lower(&b, s, at, cp, client);
		}
		start = to == PFX_J_TITLE ? !is_cased(cp) : to == PFX_J_TITLE_FILTER && starts_word(cp);
	}
	return pfx_j_built(&b);
}

static int is_alpha(uint32_t cp)
{
	utf8proc_category_t cat = category(cp);

	return cat >= UTF8PROC_CATEGORY_LU && cat <= UTF8PROC_CATEGORY_LO;
}

static int is_digit(uint32_t cp)
{
	return category(cp) == UTF8PROC_CATEGORY_ND;
}

/* One pass for isupper and islower: some cased character, and none of the other case. */
static int is_one_case(const struct pfx_jstr *s, int upper)
{
	int seen = 0;
	size_t len;
	uint32_t cp;

	for (size_t at = 0; at < s->n; at += len) {
		cp = pfx_j_cp(s, at, &len);
		if (upper ? is_lower(cp) : is_upper(cp)) {
			return 0;
		}
		if (category(cp) == UTF8PROC_CATEGORY_LT) {
			return 0;
		}
		seen |= upper ? is_upper(cp) : is_lower(cp);
	}
	return seen;
}

int pfx_j_is_class(struct pfx_jctx *c, const struct pfx_jstr *s, const char *what)
{
	size_t len;
	uint32_t cp;
	int yes;

	if (s == NULL || s->n == 0 || !pfx_j_step(c, s->n / 8)) {
		return 0;
	}
	if (what[0] == 'u' || what[0] == 'l') {
		return is_one_case(s, what[0] == 'u');
	}
	for (size_t at = 0; at < s->n; at += len) {
		cp = pfx_j_cp(s, at, &len);
		yes = strcmp(what, "space") == 0 ? pfx_j_is_space(cp)
			: strcmp(what, "alpha") == 0 ? is_alpha(cp)
			: strcmp(what, "digit") == 0 ? is_digit(cp) : is_alpha(cp) || is_digit(cp);
		if (!yes) {
			return 0;
		}
	}
	return 1;
}

int pfx_j_is_printable(uint32_t cp)
{
	if (cp == ' ') {
		return 1;
	}
	switch (category(cp)) {
	case UTF8PROC_CATEGORY_CC:
	case UTF8PROC_CATEGORY_CF:
	case UTF8PROC_CATEGORY_CS:
	case UTF8PROC_CATEGORY_CO:
	case UTF8PROC_CATEGORY_CN:
	case UTF8PROC_CATEGORY_ZL:
	case UTF8PROC_CATEGORY_ZP:
	case UTF8PROC_CATEGORY_ZS:
		return 0;
	default:
		return 1;
	}
}

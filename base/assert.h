#ifndef PFX_BASE_ASSERT_H
#define PFX_BASE_ASSERT_H

/*
 * Assertions that are on in every build. They are for our own bugs alone, one condition
 * each and cheap; bad input, a failing disk or a missing device is an error, never an
 * assertion. A failed one prints the place and aborts, since what follows is unknown.
 */

#define PFX_ASSERT(cond) \
	do { \
		if (__builtin_expect(!(cond), 0)) \
			pfx_assert_failed(#cond, __FILE__, __LINE__, __func__); \
	} while (0)

_Noreturn void pfx_assert_failed(const char *what, const char *file, int line, const char *func);

#endif

/*
 * Apart from ctl_top.c because term.h makes macros of words like `lines` and `columns`.
 */
#include "config.h"

#include <unistd.h>

#include "tools/ctl.h"

#ifdef HAVE_NCURSES
#include <curses.h>
#include <term.h>
#endif

int pfx_ctl_terminal_known(void)
{
#ifdef HAVE_NCURSES
	int known = 0;

	if (setupterm(NULL, STDOUT_FILENO, &known) == OK) {
		del_curterm(cur_term);
		return 1;
	}
#endif
	return 0;
}

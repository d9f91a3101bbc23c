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
	int known = 0, can;

	if (setupterm(NULL, STDOUT_FILENO, &known) == OK) {
		/* A screen cannot be kept up where the cursor does not go to a place. */
		can = cursor_address != NULL;
		del_curterm(cur_term);
		return can;
	}
#endif
	return 0;
}

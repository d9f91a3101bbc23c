/*
 * prefixctl top: what runs now. On a terminal a live view, which gives the terminal back
 * however it ends; into a pipe one look as text; with --json a line a second. The server
 * keeps no state for it: rates are differences of two looks, so any number may watch.
 */
#include "config.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifdef HAVE_NCURSES
#include <curses.h>
#endif

#include "base/alloc.h"
#include "base/buf.h"
#include "base/clock.h"
#include "net/client.h"
#include "tools/ctl.h"

#define KEY_SLICE_MS 50 /* a key, a signal or a new size is seen this late */
#define PATIENCE_MS 2000 /* after this the screen says that the server does not answer */

/* Order of the list: by a column, highest first but for number. */
static const struct sort {
	char key;
	const char *name, *field;
} sorts[] = {
	{ 'n', "number", "request" },
	{ 'a', "age", "age_ms" },
	{ 't', "tokens/s", "tokens_per_s" },
	{ 'm', "prompt", "prompt_tokens" },
	{ 'c', "cached", "cached_tokens" },
	{ 'o', "output", "completion_tokens" },
};

#define N_SORTS (sizeof(sorts) / sizeof(sorts[0]))

struct top {
	struct pfx_ctl *ctl;
	struct pfx_client *client;
	json_t *now, *before; /* the last two looks; before may be NULL */
	int delay_ms;
	long long count; /* looks left; < 0: no end */
	unsigned sort;
	int paused, quit, status;
	uint64_t asked_ns, next_ns; /* asked: of a look that is not answered yet; 0: none */
	char *lines[256];
	uint32_t n_lines, heading; /* heading: the list's */
	int stale; /* lines are to be made anew */
};

static volatile sig_atomic_t stopped_by;

static void on_signal(int sig)
{
	stopped_by = sig;
}

/* ---- asking ---- */

static int send_ask(struct top *t)
{
	t->asked_ns = pfx_clock_ns();
	return pfx_client_send_json(t->client, t->ctl->fields);
}

/* Takes a look that has come. 1: a new one; 0: not yet; negative: over, t->status says how. */
static int take_look(struct top *t, int wait_ms)
{
	const char *line;
	json_t *look;
	size_t n;
	int rc = pfx_client_recv(t->client, &line, &n, wait_ms);

	if (rc == -ETIMEDOUT || rc == -EINTR) {
		return 0;
	}
	if (rc < 0) {
		t->status = PFX_CTL_CONNECTION;
		return rc;
	}
	look = json_loadb(line, n, JSON_ALLOW_NUL, NULL);
	if (look == NULL || strcmp(pfx_ctl_str(look, "event"), "top") != 0) {
		t->status = look == NULL ? PFX_CTL_CONNECTION : PFX_CTL_SERVER;
		json_decref(t->now);
		t->now = look;
		return -EPROTO;
	}
	if (t->ctl->raw) {
		printf("%s\n", line);
		fflush(stdout);
	}
	json_decref(t->before);
	t->before = t->now;
	t->now = look;
	t->asked_ns = 0;
	t->next_ns = pfx_clock_ns() + (uint64_t)t->delay_ms * 1000000u;
	t->count -= t->count > 0;
	t->stale = !t->paused;
	return 1;
}

/* ---- one look as lines ---- */

__attribute__((format(printf, 2, 3)))
static void add_line(struct top *t, const char *fmt, ...)
{
	struct pfx_buf b = PFX_BUF_INIT;
	va_list ap;

	va_start(ap, fmt);
	pfx_buf_vaddf(&b, fmt, ap);
	va_end(ap);
	if (t->n_lines < sizeof(t->lines) / sizeof(t->lines[0])) {
		t->lines[t->n_lines++] = pfx_buf_take(&b, NULL);
	}
	pfx_buf_free(&b);
}

static void drop_lines(struct top *t)
{
	for (uint32_t i = 0; i < t->n_lines; i++) {
		pfx_free(t->lines[i]);
	}
	t->n_lines = 0;
}

static const json_t *part(const json_t *look, const char *key)
{
	return json_object_get(look, key);
}

/* A second's worth of what a counter rose by since the look before; 0 without one. */
static double rate(const struct top *t, const char *group, const char *key)
{
	double s;

	if (t->before == NULL) {
		return 0;
	}
	s = (double)(pfx_ctl_int(t->now, "time_ms") - pfx_ctl_int(t->before, "time_ms")) / 1000;
	return s <= 0 ? 0 : (double)(pfx_ctl_int(part(t->now, group), key) -
		pfx_ctl_int(part(t->before, group), key)) / s;
}

static void add_percent(struct pfx_buf *b, const char *what, const json_t *row, const char *key)
{
	const json_t *v = json_object_get(row, key);

	if (json_is_number(v)) {
		pfx_buf_addf(b, "  %s %.1f%%", what, 100 * json_number_value(v));
	}
}

static void head_lines(struct top *t)
{
	const json_t *requests = part(t->now, "requests"), *minutes = part(t->now, "last_minutes");
	const json_t *tokens = part(t->now, "tokens");
	long long up = (long long)pfx_ctl_real(t->now, "uptime_s");
	double prompt = rate(t, "tokens", "prompt"), computed = rate(t, "tokens", "computed");
	struct pfx_buf b = PFX_BUF_INIT;

	add_line(t, "prefixd %s  up %lld:%02lld:%02lld  running %lld  queued %lld  done %lld  "
		"failed %lld",
		pfx_ctl_str(t->now, "model"), up / 3600, up / 60 % 60, up % 60,
		pfx_ctl_int(requests, "running"), pfx_ctl_int(requests, "queued"),
		pfx_ctl_int(requests, "done"), pfx_ctl_int(requests, "failed"));
	if (t->before != NULL) {
		add_line(t, "tokens/s: prompt %.0f (cached %.0f, computed %.0f)  generated %.0f  "
			"steps/s %.0f",
			prompt, prompt - computed, computed, rate(t, "tokens", "generated"),
			rate(t, "steps", "count"));
	} else {
		add_line(t, "tokens: prompt %lld (computed %lld)  generated %lld",
			pfx_ctl_int(tokens, "prompt"), pfx_ctl_int(tokens, "computed"),
			pfx_ctl_int(tokens, "generated"));
	}
	pfx_buf_addf(&b, "this minute and the last: %lld requests", pfx_ctl_int(minutes, "requests"));
	add_percent(&b, "hit rate", minutes, "hit_rate");
	add_percent(&b, "of at most", minutes, "ceiling");
	add_line(t, "%s", b.data);
	pfx_buf_free(&b);
}

static void tier_line(struct top *t, const char *name)
{
	const json_t *tier = part(part(t->now, "tiers"), name);
	long long blocks = pfx_ctl_int(tier, "blocks"), cached = pfx_ctl_int(tier, "cached");
	long long running = pfx_ctl_int(tier, "running");
	char bar[21];

	if (blocks == 0) {
		return;
	}
	for (int i = 0; i < 20; i++) {
		bar[i] = i < running * 20 / blocks ? '#' : i < (running + cached) * 20 / blocks ? '=' : '.';
	}
	bar[20] = 0;
	add_line(t, "%-6s [%s] running %lld, cached %lld, free %lld of %lld; leased %lld", name, bar,
		running, cached, pfx_ctl_int(tier, "free"), blocks, pfx_ctl_int(tier, "leased"));
}

struct sorted {
	const json_t *row;
	double by;
};

static int by_key(const void *a, const void *b)
{
	const struct sorted *x = a, *y = b;

	return (x->by < y->by) - (x->by > y->by);
}

static void request_line(struct top *t, const json_t *r)
{
	const json_t *speed = json_object_get(r, "tokens_per_s");
	struct pfx_buf b = PFX_BUF_INIT;

	pfx_buf_addf(&b, "%8lld %-8s %-9s %7lld %7lld %7lld %6lld", pfx_ctl_int(r, "request"),
		pfx_ctl_str(r, "op"), pfx_ctl_str(r, "state"), pfx_ctl_int(r, "prompt_tokens"),
		pfx_ctl_int(r, "done_tokens"), pfx_ctl_int(r, "cached_tokens"),
		pfx_ctl_int(r, "completion_tokens"));
	if (json_is_number(speed)) {
		pfx_buf_addf(&b, " %6.1f", json_number_value(speed));
	} else {
		pfx_buf_addf(&b, " %6s", "-");
	}
	pfx_buf_addf(&b, " %7.1f %s %s", pfx_ctl_real(r, "age_ms") / 1000, pfx_ctl_str(r, "namespace"),
		pfx_ctl_str(r, "salt"));
	add_line(t, "%s", b.data);
	pfx_buf_free(&b);
}

/* Fills lines from t->now. */
static void make_lines(struct top *t)
{
	const json_t *list = part(t->now, "list"), *disk = part(part(t->now, "tiers"), "disk");
	const struct sort *s = &sorts[t->sort];
	size_t n = json_array_size(list);
	struct sorted *rows = pfx_xcalloc(n, sizeof(*rows));

	drop_lines(t);
	head_lines(t);
	tier_line(t, "device");
	tier_line(t, "host");
	if (pfx_ctl_int(disk, "records") > 0) {
		add_line(t, "disk   %lld records, %.1f MiB", pfx_ctl_int(disk, "records"),
			(double)pfx_ctl_int(disk, "bytes") / 1048576);
	}
	t->heading = t->n_lines;
	add_line(t, "%8s %-8s %-9s %7s %7s %7s %6s %6s %7s %s", "REQUEST", "OP", "STATE", "PROMPT",
		"DONE", "CACHED", "OUT", "TOK/S", "AGE/s", "NAMESPACE");
	for (size_t i = 0; i < n; i++) {
		rows[i].row = json_array_get(list, i);
		rows[i].by = pfx_ctl_real(rows[i].row, s->field) * (s->key == 'n' ? -1 : 1);
	}
	qsort(rows, n, sizeof(*rows), by_key);
	for (size_t i = 0; i < n; i++) {
		request_line(t, rows[i].row);
	}
	if (pfx_ctl_int(t->now, "left_out") > 0) {
		add_line(t, "%8lld more", pfx_ctl_int(t->now, "left_out"));
	}
	pfx_free(rows);
	t->stale = 0;
}

/* ---- without a screen ---- */

static void put_lines(struct top *t)
{
	make_lines(t);
	for (uint32_t i = 0; i < t->n_lines; i++) {
		pfx_ctl_put_text(t->lines[i], strlen(t->lines[i]), pfx_ctl_width());
		puts("");
	}
	fflush(stdout);
}

static void rest_until(uint64_t ns)
{
	while (!stopped_by && pfx_clock_ns() < ns) {
		usleep(KEY_SLICE_MS * 1000);
	}
}

static int watch_as_lines(struct top *t)
{
	int rc = 0;

	while (t->count != 0 && !stopped_by && rc >= 0) {
		rc = send_ask(t);
		if (rc < 0) {
			t->status = PFX_CTL_CONNECTION;
		}
		while (rc == 0 && !stopped_by) {
			rc = take_look(t, KEY_SLICE_MS);
			if (rc == 0 && t->ctl->timeout_ms >= 0 &&
				pfx_clock_ns() - t->asked_ns > (uint64_t)t->ctl->timeout_ms * 1000000u) {
				rc = -ETIMEDOUT;
				t->status = PFX_CTL_CONNECTION;
			}
		}
		if (rc == 1 && !t->ctl->raw) {
			put_lines(t);
		}
		if (rc == 1 && t->count != 0) {
			rest_until(t->next_ns);
		}
	}
	return rc;
}

/* ---- on a screen ---- */

#ifdef HAVE_NCURSES

static void draw_line(int y, const char *text, attr_t how)
{
	struct pfx_buf clean = PFX_BUF_INIT;

	pfx_ctl_clean(&clean, text, strlen(text), COLS);
	attrset(how);
	if (how != A_NORMAL) {
		mvhline(y, 0, ' ', COLS);
	}
	mvaddstr(y, 0, clean.data == NULL ? "" : clean.data);
	attrset(A_NORMAL);
	pfx_buf_free(&clean);
}

static void draw(struct top *t)
{
	uint64_t waited = t->asked_ns == 0 ? 0 : (pfx_clock_ns() - t->asked_ns) / 1000000u;
	struct pfx_buf foot = PFX_BUF_INIT;

	if (t->stale && t->now != NULL) {
		make_lines(t);
	}
	erase();
	for (uint32_t i = 0; i < t->n_lines && (int)i < LINES - 1; i++) {
		draw_line((int)i, t->lines[i], i == t->heading ? A_REVERSE : i == 0 ? A_BOLD : A_NORMAL);
	}
	pfx_buf_adds(&foot, t->paused ? "PAUSED  " : waited > PATIENCE_MS ? "NO ANSWER  " : "");
	pfx_buf_addf(&foot, "q quit  p pause  by %s; sort:", sorts[t->sort].name);
	for (size_t i = 0; i < N_SORTS; i++) {
		pfx_buf_addf(&foot, " %c=%s", sorts[i].key, sorts[i].name);
	}
	draw_line(LINES - 1, foot.data, A_REVERSE);
	pfx_buf_free(&foot);
	refresh();
}

static void on_key(struct top *t, int key)
{
	if (key == 'q' || key == 'Q' || key == 3) {
		t->quit = 1;
	} else if (key == 'p' || key == ' ') {
		t->paused = !t->paused;
		t->stale = !t->paused;
	} else {
		for (unsigned i = 0; i < N_SORTS; i++) {
			if (sorts[i].key == key) {
				t->sort = i;
				t->stale = 1;
			}
		}
	}
}

static int watch_on_screen(struct top *t)
{
	SCREEN *screen = NULL;
	int rc = 0, key;

	/* Not initscr, which ends the program where the terminal is not known. */
	if (pfx_ctl_terminal_known()) {
		screen = newterm(NULL, stdout, stdin);
	}
	if (screen == NULL) {
		t->count = t->count < 0 ? 1 : t->count;
		return watch_as_lines(t);
	}
	cbreak();
	noecho();
	keypad(stdscr, TRUE);
	curs_set(0);
	timeout(KEY_SLICE_MS);
	while (!t->quit && !stopped_by && rc >= 0 && t->count != 0) {
		if (t->asked_ns != 0) {
			rc = take_look(t, KEY_SLICE_MS);
		} else if (!t->paused && pfx_clock_ns() >= t->next_ns) {
			rc = send_ask(t);
			t->status = rc < 0 ? PFX_CTL_CONNECTION : t->status;
		}
		if (rc >= 0) {
			draw(t);
			while ((key = getch()) != ERR) {
				on_key(t, key);
			}
		}
	}
	endwin();
	delscreen(screen);
	return rc;
}

#else

static int watch_on_screen(struct top *t)
{
	t->count = t->count < 0 ? 1 : t->count; /* built without ncurses: one look */
	return watch_as_lines(t);
}

#endif

/* ---- the command ---- */

static void catch_signals(void)
{
	static const int signals[] = { SIGINT, SIGTERM, SIGHUP, SIGQUIT };
	struct sigaction sa = { .sa_handler = on_signal };

	for (size_t i = 0; i < sizeof(signals) / sizeof(signals[0]); i++) {
		sigaction(signals[i], &sa, NULL);
	}
}

static void tell_end(const struct top *t, int rc)
{
	if (t->status == PFX_CTL_SERVER) {
		fprintf(stderr, "prefixctl: %s: %s\n", pfx_ctl_str(t->now, "code"),
			pfx_ctl_str(t->now, "message"));
	} else if (rc < 0) {
		fprintf(stderr, "prefixctl: %s\n", rc == -EPIPE ? "the server closed the connection"
			: strerror(-rc));
	}
}

/* What was caught ends the program in the way that its sender expects. */
static int end_status(const struct top *t, int on_screen)
{
	if (stopped_by == SIGINT) {
		return on_screen || t->ctl->raw ? 0 : PFX_CTL_INTERRUPTED;
	}
	if (stopped_by != 0) {
		signal(stopped_by, SIG_DFL);
		raise(stopped_by);
	}
	return t->status;
}

int pfx_ctl_top(struct pfx_ctl *ctl, struct pfx_client *client)
{
	const json_t *count = json_object_get(ctl->local, "count");
	const json_t *delay = json_object_get(ctl->local, "delay");
	int on_screen = !ctl->raw && isatty(STDOUT_FILENO) && isatty(STDIN_FILENO), rc;
	struct top t = { .ctl = ctl, .client = client, .delay_ms = 1000, .sort = 1 };

	if (delay != NULL) {
		double s = json_number_value(delay);

		if (!(s >= 0.1 && s <= 86400)) {
			pfx_ctl_die("--delay is from 0.1 to 86400");
		}
		t.delay_ms = (int)(s * 1000);
	}
	if (count != NULL && json_integer_value(count) < 0) {
		pfx_ctl_die("--count is 0 or more");
	}
	t.count = count != NULL ? json_integer_value(count) : ctl->raw || on_screen ? -1 : 1;
	catch_signals();
	rc = on_screen ? watch_on_screen(&t) : watch_as_lines(&t);
	tell_end(&t, rc);
	drop_lines(&t);
	json_decref(t.now);
	json_decref(t.before);
	return end_status(&t, on_screen);
}

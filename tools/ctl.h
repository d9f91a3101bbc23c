#ifndef PFX_TOOLS_CTL_H
#define PFX_TOOLS_CTL_H

/*
 * What the files of prefixctl share. A command is a row of a table: how its request is built
 * from the options and words, and how its reply is told to people. A group is a file's table
 * of commands with the options that they brought along; prefixctl.c lists the groups and
 * reads the command line, ctl_talk.c holds the conversation, ctl_input.c reads prompts,
 * ctl_tell.c has what the tellers share.
 */

#include <jansson.h>
#include <stddef.h>

enum {
	PFX_CTL_NOT_OK = 1,
	PFX_CTL_USAGE = 2,
	PFX_CTL_CONNECTION = 3,
	PFX_CTL_SERVER = 4,
	PFX_CTL_INTERRUPTED = 130,
};

struct pfx_client;
struct pfx_ctl_command;

/* The command line. */
struct pfx_ctl {
	const char *server;
	int raw; /* --json */
	const struct pfx_ctl_command *command;
	json_t *fields; /* of the request: what the options ask for, then what fill adds */
	json_t *local;  /* what options without a field ask for, by the option's name */
	const char *file, *messages, *system;
	int chat;
	char **words; /* behind the command */
	int n_words;
	int timeout_ms; /* -1: none */
};

struct pfx_ctl_command {
	const char *name; /* one word, or two: "store info" */
	const char *op;
	/* Adds what the op needs, or dies; NULL: nothing, and words are wrong usage. */
	void (*fill)(struct pfx_ctl *ctl);
	/* Prints the last line; returns the exit status. */
	int (*tell)(const struct pfx_ctl *ctl, const json_t *reply);
	const char *help; /* what it does, behind the name in --help */
	/* Instead of one request and its reply; returns the exit status. NULL for most. */
	int (*talk)(struct pfx_ctl *ctl, struct pfx_client *client);
};

enum pfx_ctl_type {
	PFX_CTL_INT,
	PFX_CTL_SIZE, /* bytes: a number with K, M, G or T behind it */
	PFX_CTL_REAL,
	PFX_CTL_SECONDS, /* with a fraction; sent as milliseconds */
	PFX_CTL_TEXT,
	PFX_CTL_LIST, /* of texts: may be repeated */
	PFX_CTL_TRUE, /* takes no value */
	PFX_CTL_FALSE,
};

/* An option that is one field of the request, or (field NULL) one of `local`. */
struct pfx_ctl_option {
	const char *name;
	char letter; /* 0: none */
	const char *arg; /* how --help calls the value; NULL: takes none */
	enum pfx_ctl_type type;
	const char *field;
	const char *help;
};

struct pfx_ctl_group {
	const char *title;                      /* over the commands in --help */
	const struct pfx_ctl_command *commands; /* the last one's name is NULL */
	const char *options_title;
	const struct pfx_ctl_option *options; /* the last one's name is NULL; or NULL */
};

extern const struct pfx_ctl_group pfx_ctl_text, pfx_ctl_keep, pfx_ctl_view, pfx_ctl_admin,
	pfx_ctl_store;

/* Prints a sentence about the command line and exits. */
void pfx_ctl_die(const char *fmt, ...) __attribute__((format(printf, 1, 2), noreturn));

/* ctl_input.c */
/* The text to work on, as a JSON string: the words, --file, or standard input. */
json_t *pfx_ctl_input(const struct pfx_ctl *ctl);
/* Sets `messages` and returns 1 when the options ask for a conversation. */
int pfx_ctl_fill_messages(struct pfx_ctl *ctl);
/* `messages`, or else `prompt`. */
void pfx_ctl_fill_prompt(struct pfx_ctl *ctl);
/* A number from 1 on, which is the only word; what is how the sentence calls it. */
long long pfx_ctl_number(const struct pfx_ctl *ctl, const char *what);
/* The only word. */
const char *pfx_ctl_word(const struct pfx_ctl *ctl, const char *what);

/* ctl_tell.c */
double pfx_ctl_real(const json_t *o, const char *key); /* 0 when there is none */
long long pfx_ctl_int(const json_t *o, const char *key);
const char *pfx_ctl_str(const json_t *o, const char *key); /* "" when there is none */
/* Name and value of each field, one a line; what is nested gets dotted names. */
int pfx_ctl_tell_all(const struct pfx_ctl *ctl, const json_t *reply);
/* The reply's event alone. */
int pfx_ctl_tell_event(const struct pfx_ctl *ctl, const json_t *reply);
/*
 * Appended, or to standard output, cut to so many columns (0: not at all). What a terminal
 * would act on is shown, never sent: names and prompts are strangers' text.
 */
struct pfx_buf;
void pfx_ctl_clean(struct pfx_buf *out, const char *text, size_t n, int columns);
void pfx_ctl_put_text(const char *text, size_t n, int columns);
/* The same of a string in an object; nothing when there is none. */
void pfx_ctl_put_str(const json_t *o, const char *key, int columns);
/* A number of bytes as people read it: 512 bytes, 17.7 MiB. */
void pfx_ctl_put_bytes(long long bytes);
/* Columns of the terminal; 0 when standard output is none. */
int pfx_ctl_width(void);
/* usage, timing and miss of a `done`, to standard error. */
void pfx_ctl_tell_usage(const json_t *done);

/* ctl_term.c: whether ncurses knows how to draw on the terminal that TERM names. */
int pfx_ctl_terminal_known(void);

/* ctl_top.c */
int pfx_ctl_top(struct pfx_ctl *ctl, struct pfx_client *client);

/* ctl_talk.c */
/* Connects, asks, tells; the exit status. */
int pfx_ctl_run(struct pfx_ctl *ctl);
/* A Ctrl-C came; the second one ends the program. */
int pfx_ctl_interrupted(void);

#endif

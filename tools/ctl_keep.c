/* prefixctl: what is kept for a client: sessions, named prefixes, leases, ends. */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/ctl.h"

/* The first word, which names something; the others are text. */
static void take_name(struct pfx_ctl *ctl, const char *field, const char *what)
{
	if (ctl->n_words == 0) {
		pfx_ctl_die("%s takes the name of a %s", ctl->command->name, what);
	}
	json_object_set_new(ctl->fields, field, json_string(ctl->words[0]));
	ctl->words++;
	ctl->n_words--;
}

static int has_input(const struct pfx_ctl *ctl)
{
	return ctl->n_words > 0 || ctl->file != NULL || ctl->messages != NULL || ctl->chat ||
		ctl->system != NULL;
}

/* A prompt when there is one: nothing is waited for on standard input. */
static void fill_if_any(struct pfx_ctl *ctl)
{
	if (has_input(ctl)) {
		pfx_ctl_fill_prompt(ctl);
	}
}

/* ---- sessions ---- */

static void fill_open(struct pfx_ctl *ctl)
{
	if (ctl->n_words > 0) {
		take_name(ctl, "session", "session");
	}
	if (ctl->n_words == 0 && ctl->system != NULL && ctl->file == NULL && ctl->messages == NULL) {
		/* A system message alone is how a conversation begins. */
		json_object_set_new(ctl->fields, "messages", json_pack("[{s:s,s:s}]", "role", "system",
			"content", ctl->system));
		return;
	}
	fill_if_any(ctl);
}

static void fill_append(struct pfx_ctl *ctl)
{
	take_name(ctl, "session", "session");
	pfx_ctl_fill_prompt(ctl);
}

static void fill_close(struct pfx_ctl *ctl)
{
	take_name(ctl, "session", "session");
	if (ctl->n_words > 0) {
		pfx_ctl_die("session close takes one name");
	}
}

static void fill_ask(struct pfx_ctl *ctl)
{
	take_name(ctl, "session", "session");
	ctl->chat = ctl->messages == NULL && (ctl->n_words > 0 || ctl->file != NULL);
	fill_if_any(ctl);
}

static void put_tokens(const json_t *reply)
{
	const json_t *usage = json_object_get(reply, "usage");

	if (usage != NULL) {
		printf(", prompt %lld (cached %lld, computed %lld)", pfx_ctl_int(usage, "prompt_tokens"),
			pfx_ctl_int(usage, "cached_tokens"), pfx_ctl_int(usage, "computed_tokens"));
	}
	puts("");
}

static int tell_session(const struct pfx_ctl *ctl, const json_t *reply)
{
	const char *kind = pfx_ctl_str(reply, "kind");

	pfx_ctl_put_str(reply, "session", 0);
	if (strcmp(kind, "messages") == 0) {
		printf(": messages %lld", pfx_ctl_int(reply, "messages"));
	} else {
		printf(": %s", strcmp(kind, "none") == 0 ? "empty" : "a run of tokens");
	}
	printf(", tokens seen %lld, turns %lld, ends after %.1f s of silence",
		pfx_ctl_int(reply, "tokens"), pfx_ctl_int(reply, "turns"),
		pfx_ctl_real(reply, "ttl_ms") / 1e3);
	put_tokens(reply);
	return 0;
}

static int tell_ended(const struct pfx_ctl *ctl, const json_t *reply)
{
	printf("%s: %lld tokens of it were cached\n", pfx_ctl_str(reply, "event"),
		pfx_ctl_int(reply, "cached_tokens"));
	return 0;
}

static int tell_asked(const struct pfx_ctl *ctl, const json_t *reply)
{
	fflush(stdout);
	pfx_ctl_tell_usage(reply);
	return 0;
}

static void fill_end(struct pfx_ctl *ctl)
{
	if (json_object_get(ctl->fields, "session") == NULL) {
		pfx_ctl_fill_prompt(ctl);
	} else if (has_input(ctl)) {
		pfx_ctl_die("end takes --session or a prompt, not both");
	}
}

/* ---- leases ---- */

static void fill_pin(struct pfx_ctl *ctl)
{
	if (json_object_get(ctl->fields, "prefix") == NULL) {
		pfx_ctl_fill_prompt(ctl);
	} else {
		fill_if_any(ctl);
	}
}

static void fill_unpin(struct pfx_ctl *ctl)
{
	if (!json_is_true(json_object_get(ctl->fields, "all"))) {
		json_object_set_new(ctl->fields, "lease",
			json_integer(pfx_ctl_number(ctl, "a lease's number, or --all")));
	} else if (ctl->n_words > 0) {
		pfx_ctl_die("unpin takes a number or --all, not both");
	}
}

static int tell_pinned(const struct pfx_ctl *ctl, const json_t *reply)
{
	printf("lease %lld: %lld tokens in %lld blocks for %.1f s", pfx_ctl_int(reply, "lease"),
		pfx_ctl_int(reply, "tokens"), pfx_ctl_int(reply, "blocks"),
		pfx_ctl_real(reply, "ttl_ms") / 1e3);
	put_tokens(reply);
	return 0;
}

static int tell_unpinned(const struct pfx_ctl *ctl, const json_t *reply)
{
	printf("ended leases: %lld\n", pfx_ctl_int(reply, "leases"));
	return 0;
}

static void put_owner(const json_t *row)
{
	pfx_ctl_put_str(row, "namespace", 0);
	if (json_string_length(json_object_get(row, "salt")) > 0) {
		fputs("+", stdout);
		pfx_ctl_put_str(row, "salt", 0);
	}
}

static int tell_sessions(const struct pfx_ctl *ctl, const json_t *reply)
{
	const json_t *row;
	size_t i;

	printf("%8s %10s %8s %12s %10s %10s  %s\n", "messages", "tokens", "turns", "bytes", "idle",
		"ends in", "session");
	json_array_foreach(json_object_get(reply, "sessions"), i, row) {
		double idle = pfx_ctl_real(row, "idle_s");

		printf("%8lld %10lld %8lld %12lld ", pfx_ctl_int(row, "messages"),
			pfx_ctl_int(row, "tokens"), pfx_ctl_int(row, "turns"), pfx_ctl_int(row, "bytes"));
		if (json_is_true(json_object_get(row, "busy"))) {
			printf("%10s %10s  ", "in a turn", "");
		} else {
			printf("%9.1fs %9.1fs  ", idle, pfx_ctl_real(row, "ttl_ms") / 1e3 - idle);
		}
		pfx_ctl_put_str(row, "session", 0);
		fputs(" ", stdout);
		put_owner(row);
		puts("");
	}
	return 0;
}

static int tell_pins(const struct pfx_ctl *ctl, const json_t *reply)
{
	const json_t *list = json_object_get(reply, "leases"), *row;
	size_t i;

	printf("%8s %10s %8s %8s %10s %10s  %s\n", "lease", "tokens", "blocks", "hits", "age", "left",
		"prefix");
	json_array_foreach(list, i, row) {
		printf("%8lld %10lld %8lld %8lld %9.1fs %9.1fs  ", pfx_ctl_int(row, "lease"),
			pfx_ctl_int(row, "tokens"), pfx_ctl_int(row, "blocks"),
			pfx_ctl_int(row, "hits"), pfx_ctl_real(row, "age_s"),
			pfx_ctl_real(row, "left_s"));
		pfx_ctl_put_str(row, "prefix", 0);
		fputs(" ", stdout);
		put_owner(row);
		puts("");
	}
	printf("blocks leased: %lld, at most %lld\n", pfx_ctl_int(reply, "blocks_leased"),
		pfx_ctl_int(reply, "blocks_max"));
	return 0;
}

/* ---- named prefixes ---- */

static void fill_put(struct pfx_ctl *ctl)
{
	take_name(ctl, "prefix", "prefix");
	pfx_ctl_fill_prompt(ctl);
}

static void fill_name(struct pfx_ctl *ctl)
{
	take_name(ctl, "prefix", "prefix");
	if (ctl->n_words > 0) {
		pfx_ctl_die("%s takes one name", ctl->command->name);
	}
}

static void put_prefix(const json_t *row)
{
	pfx_ctl_put_str(row, "prefix", 0);
	printf(": %s, %lld bytes, digest %s", pfx_ctl_str(row, "kind"), pfx_ctl_int(row, "bytes"),
		pfx_ctl_str(row, "digest"));
}

static int tell_prefix(const struct pfx_ctl *ctl, const json_t *reply)
{
	const json_t *cached = json_object_get(reply, "cached");

	put_prefix(reply);
	if (json_is_integer(json_object_get(reply, "tokens"))) {
		printf(", %lld tokens", pfx_ctl_int(reply, "tokens"));
	}
	if (cached != NULL) {
		printf(" (cached: device %lld, host %lld, disk %lld)", pfx_ctl_int(cached, "device"),
			pfx_ctl_int(cached, "host"), pfx_ctl_int(cached, "disk"));
	}
	if (json_is_integer(json_object_get(reply, "lease"))) {
		printf(", lease %lld", pfx_ctl_int(reply, "lease"));
	}
	if (json_is_true(json_object_get(reply, "replaced"))) {
		fputs(", replaced", stdout);
	}
	put_tokens(reply);
	return 0;
}

static int tell_prefixes(const struct pfx_ctl *ctl, const json_t *reply)
{
	const json_t *row;
	size_t i;

	json_array_foreach(json_object_get(reply, "prefixes"), i, row) {
		put_prefix(row);
		printf(", put %.1f s ago", pfx_ctl_real(row, "age_s"));
		if (json_string_length(json_object_get(row, "salt")) > 0) {
			fputs(", namespace ", stdout);
			put_owner(row);
		}
		puts("");
	}
	return 0;
}

static int tell_deleted(const struct pfx_ctl *ctl, const json_t *reply)
{
	puts("deleted");
	return 0;
}

static const struct pfx_ctl_command commands[] = {
	{ "session open", "session.open", fill_open, tell_session,
		"begin a conversation: [NAME [TEXT]]", NULL },
	{ "session append", "session.append", fill_append, tell_session,
		"add to it without an answer: NAME TEXT (-c: as a message)", NULL },
	{ "session close", "session.close", fill_close, tell_ended, "end it: NAME", NULL },
	{ "sessions", "session.list", NULL, tell_sessions, "the sessions", NULL },
	{ "ask", "generate", fill_ask, tell_asked, "say something in a session: NAME [TEXT]", NULL },
	{ "end", "end", fill_end, tell_ended, "a conversation will not go on", NULL },
	{ "pin", "pin", fill_pin, tell_pinned, "keep a prefix in device memory for a time", NULL },
	{ "unpin", "unpin", fill_unpin, tell_unpinned, "end a lease, by its number", NULL },
	{ "pins", "pins", NULL, tell_pins, "leases", NULL },
	{ "prefix put", "prefix.put", fill_put, tell_prefix, "keep a prompt under a name: NAME TEXT",
		NULL },
	{ "prefix get", "prefix.get", fill_name, tell_prefix, "what a name means: NAME", NULL },
	{ "prefix list", "prefix.list", NULL, tell_prefixes, "the names", NULL },
	{ "prefix delete", "prefix.delete", fill_name, tell_deleted, "forget a name: NAME", NULL },
	{ 0 },
};

static const struct pfx_ctl_option options[] = {
	{ "session", 0, "NAME", PFX_CTL_TEXT, "session", "gen, warm, end: go on with this session" },
	{ "prefix", 0, "NAME", PFX_CTL_TEXT, "prefix",
		"gen, warm, score, pin, end, session open: with this prefix in front" },
	{ "ttl", 0, "SECONDS", PFX_CTL_SECONDS, "ttl_ms",
		"Keep it for so long; of pin and prefix put --pin, the lease's time; of session open, how "
		"long it lives when nothing is said" },
	{ "last-turn", 0, NULL, PFX_CTL_TRUE, "last_turn",
		"gen, warm, score, ask: the conversation ends with this" },
	{ "pin", 0, NULL, PFX_CTL_TRUE, "pin", "prefix put: with a lease" },
	{ "warm", 0, NULL, PFX_CTL_TRUE, "warm", "prefix put, session open, append: compute it, too" },
	{ "all", 0, NULL, PFX_CTL_TRUE, "all",
		"unpin: all leases; pins, sessions, prefix list: those of all namespaces of this server's" },
	{ 0 },
};

const struct pfx_ctl_group pfx_ctl_keep = { "What is kept", commands, "Keeping", options };

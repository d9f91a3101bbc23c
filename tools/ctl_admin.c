/* prefixctl: the server itself: is it there, what does it count. */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>

#include "tools/ctl.h"

static void fill_cancel(struct pfx_ctl *ctl)
{
	json_object_set_new(ctl->fields, "request",
		json_integer(pfx_ctl_number(ctl, "a request's number")));
}

static int tell_check(const struct pfx_ctl *ctl, const json_t *reply)
{
	const json_t *problems = json_object_get(reply, "problems");

	if (json_is_true(json_object_get(reply, "ok"))) {
		puts("ok");
		return 0;
	}
	for (size_t i = 0; i < json_array_size(problems); i++) {
		puts(json_string_value(json_array_get(problems, i)));
	}
	return PFX_CTL_NOT_OK;
}

/* Lines of which a config file can be made. What is not set has no place in one. */
static int tell_config(const struct pfx_ctl *ctl, const json_t *reply)
{
	const char *name;
	json_t *value;

	json_object_foreach(json_object_get(reply, "settings"), name, value) {
		if (json_is_null(value) || json_is_boolean(value)) {
			printf("# %s%s\n", name, json_is_true(value) ? ": yes" : "");
		} else {
			char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_REAL_PRECISION(15));

			printf("%s = %s\n", name, text == NULL ? "" : text);
			free(text);
		}
	}
	return 0;
}

static const struct pfx_ctl_command commands[] = {
	{ "ping", "ping", NULL, pfx_ctl_tell_event, "say pong", NULL },
	{ "hello", "hello", NULL, pfx_ctl_tell_all, "version, model, backend and limits", NULL },
	{ "stats", "stats", NULL, pfx_ctl_tell_all, "counters", NULL },
	{ "check", "check", NULL, tell_check, "walk all of the cache's invariants", NULL },
	{ "config", "config", NULL, tell_config, "the settings in force, as a config file has them",
		NULL },
	{ "cancel", "cancel", fill_cancel, pfx_ctl_tell_event, "stop a request, by its number", NULL },
	{ "drain", "drain", NULL, pfx_ctl_tell_event,
		"finish what runs, take nothing new, end the server", NULL },
	{ 0 },
};

const struct pfx_ctl_group pfx_ctl_admin = { "The server", commands, NULL, NULL };

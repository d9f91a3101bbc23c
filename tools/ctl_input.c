/* prefixctl: where text comes from, and what a command's words mean. */
#include "config.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "tools/ctl.h"

static void read_file(FILE *f, const char *name, struct pfx_buf *out)
{
	for (;;) {
		char *to = pfx_buf_room(out, 65536);
		size_t n = to == NULL ? 0 : fread(to, 1, 65536, f);

		out->len += n;
		if (n == 0) {
			break;
		}
	}
	if (ferror(f) || out->oom) {
		pfx_ctl_die("cannot read %s", name);
	}
}

json_t *pfx_ctl_input(const struct pfx_ctl *ctl)
{
	struct pfx_buf b = PFX_BUF_INIT;
	json_t *text;

	if (ctl->file != NULL && strcmp(ctl->file, "-") != 0) {
		FILE *f = fopen(ctl->file, "rb");

		if (f == NULL) {
			pfx_ctl_die("cannot open %s: %s", ctl->file, strerror(errno));
		}
		read_file(f, ctl->file, &b);
		fclose(f);
	} else if (ctl->n_words > 0 && ctl->file == NULL) {
		for (int i = 0; i < ctl->n_words; i++) {
			pfx_buf_adds(&b, i == 0 ? "" : " ");
			pfx_buf_adds(&b, ctl->words[i]);
		}
	} else {
		read_file(stdin, "standard input", &b);
	}
	text = json_stringn(b.data == NULL ? "" : b.data, b.len);
	pfx_buf_free(&b);
	if (text == NULL) {
		pfx_ctl_die("the text is not UTF-8");
	}
	return text;
}

static json_t *message(const char *role, json_t *content)
{
	return json_pack("{s:s,s:o}", "role", role, "content", content);
}

int pfx_ctl_fill_messages(struct pfx_ctl *ctl)
{
	json_error_t why;
	json_t *list;

	if (ctl->messages != NULL) {
		list = strcmp(ctl->messages, "-") == 0 ? json_loadf(stdin, JSON_ALLOW_NUL, &why)
			: json_load_file(ctl->messages, JSON_ALLOW_NUL, &why);
		if (list == NULL) {
			pfx_ctl_die("%s: %s (line %d)", ctl->messages, why.text, why.line);
		}
	} else if (ctl->chat || ctl->system != NULL) {
		list = json_array();
		if (ctl->system != NULL) {
			json_array_append_new(list, message("system", json_string(ctl->system)));
		}
		json_array_append_new(list, message("user", pfx_ctl_input(ctl)));
	} else {
		return 0;
	}
	json_object_set_new(ctl->fields, "messages", list);
	return 1;
}

void pfx_ctl_fill_prompt(struct pfx_ctl *ctl)
{
	if (!pfx_ctl_fill_messages(ctl)) {
		json_object_set_new(ctl->fields, "prompt", pfx_ctl_input(ctl));
	}
}

const char *pfx_ctl_word(const struct pfx_ctl *ctl, const char *what)
{
	if (ctl->n_words != 1) {
		pfx_ctl_die("%s takes %s", ctl->command->name, what);
	}
	return ctl->words[0];
}

long long pfx_ctl_number(const struct pfx_ctl *ctl, const char *what)
{
	const char *word = pfx_ctl_word(ctl, what);
	char *end;
	long long n;

	errno = 0;
	n = strtoll(word, &end, 10);
	if (n < 1 || *end != 0 || errno != 0) {
		pfx_ctl_die("%s takes %s", ctl->command->name, what);
	}
	return n;
}

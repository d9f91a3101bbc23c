/* prefixctl: commands that work on text: gen, warm, score, render, tokenize, detokenize. */
#include "config.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/ctl.h"

static void fill_text(struct pfx_ctl *ctl)
{
	if (!pfx_ctl_fill_messages(ctl)) {
		json_object_set_new(ctl->fields, "text", pfx_ctl_input(ctl));
	}
}

static void fill_render(struct pfx_ctl *ctl)
{
	ctl->chat = 1;
	pfx_ctl_fill_messages(ctl);
}

static void fill_tokens(struct pfx_ctl *ctl)
{
	json_t *ids = json_array();
	const char *text;
	json_t *words;
	char *end;

	words = pfx_ctl_input(ctl);
	text = json_string_value(words);
	while (*(text += strspn(text, " \t\r\n,[]")) != 0) {
		errno = 0;
		json_array_append_new(ids, json_integer(strtoll(text, &end, 10)));
		if (end == text || errno != 0) {
			pfx_ctl_die("%.20s is not a token id", text);
		}
		text = end;
	}
	json_decref(words);
	json_object_set_new(ctl->fields, "tokens", ids);
}

static int tell_done(const struct pfx_ctl *ctl, const json_t *reply)
{
	fflush(stdout);
	pfx_ctl_tell_usage(reply);
	return 0;
}

static int tell_score(const struct pfx_ctl *ctl, const json_t *reply)
{
	const json_t *list = json_object_get(reply, "logprobs");
	double sum = 0;

	for (size_t i = 0; i < json_array_size(list); i++) {
		double lp = json_number_value(json_array_get(list, i));

		sum += lp;
		printf("%.6f\n", lp);
	}
	fflush(stdout);
	if (json_array_size(list) > 0) {
		fprintf(stderr, "sum %.6f, mean %.6f\n", sum, sum / (double)json_array_size(list));
	}
	pfx_ctl_tell_usage(reply);
	return 0;
}

static int tell_tokens(const struct pfx_ctl *ctl, const json_t *reply)
{
	const json_t *list = json_object_get(reply, "tokens");

	for (size_t i = 0; i < json_array_size(list); i++) {
		printf("%s%lld", i == 0 ? "" : " ", json_integer_value(json_array_get(list, i)));
	}
	puts("");
	return 0;
}

static int tell_text(const struct pfx_ctl *ctl, const json_t *reply)
{
	const json_t *text = json_object_get(reply, "text");

	fwrite(json_string_value(text), 1, json_string_length(text), stdout);
	if (isatty(STDOUT_FILENO)) {
		puts("");
	}
	return 0;
}

static const struct pfx_ctl_command commands[] = {
	{ "gen", "generate", pfx_ctl_fill_prompt, tell_done,
		"generate; the text to standard output", NULL },
	{ "warm", "warm", pfx_ctl_fill_prompt, tell_done,
		"compute a prompt's prefix and keep it", NULL },
	{ "score", "score", pfx_ctl_fill_prompt, tell_score,
		"log-probability of each of a text's tokens", NULL },
	{ "render", "render", fill_render, tell_text,
		"what the chat template makes of messages", NULL },
	{ "tokenize", "tokenize", fill_text, tell_tokens, "a text's token ids", NULL },
	{ "detokenize", "detokenize", fill_tokens, tell_text, "the text of token ids", NULL },
	{ 0 },
};

static const struct pfx_ctl_option options[] = {
	{ "max-tokens", 'n', "N", PFX_CTL_INT, "max_tokens", "Most tokens of the reply" },
	{ "temperature", 't', "T", PFX_CTL_REAL, "temperature",
		"0, the default, takes the best token always" },
	{ "top-k", 0, "N", PFX_CTL_INT, "top_k", "Only the N best tokens" },
	{ "top-p", 0, "P", PFX_CTL_REAL, "top_p", "Only the best tokens that make up P together" },
	{ "min-p", 0, "P", PFX_CTL_REAL, "min_p",
		"Only tokens at least P times as likely as the best" },
	{ "repeat-penalty", 0, "X", PFX_CTL_REAL, "repeat_penalty",
		"Makes tokens of the context less likely" },
	{ "seed", 0, "N", PFX_CTL_INT, "seed", "The same seed gives the same reply" },
	{ "stop", 0, "TEXT", PFX_CTL_LIST, "stop", "End before this text; may be repeated" },
	{ "ignore-eos", 0, NULL, PFX_CTL_TRUE, "ignore_eos", "Go on behind the end-of-turn token" },
	{ "logprobs", 0, "N", PFX_CTL_INT, "logprobs",
		"Log-probabilities and the N best (with --json)" },
	{ "digest", 0, NULL, PFX_CTL_TRUE, "digest",
		"A digest of each position's logits (with --json)" },
	{ "from", 0, "N", PFX_CTL_INT, "from", "score: the first position wanted" },
	{ "no-store", 0, NULL, PFX_CTL_FALSE, "store", "Leave nothing in the cache" },
	{ "progress", 0, NULL, PFX_CTL_TRUE, "progress", "Tell how far the prompt is" },
	{ "deadline-ms", 0, "N", PFX_CTL_INT, "deadline_ms", "Give up after so long" },
	{ "special", 0, NULL, PFX_CTL_TRUE, "special", "tokenize: read control tokens in the text" },
	{ 0 },
};

const struct pfx_ctl_group pfx_ctl_text = { "Text", commands, "Generation", options };

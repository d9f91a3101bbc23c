/*
 * Chat templates: what jinja2 makes of some hundred small ones (tests/vectors/chat.json),
 * who wrote each byte, and that nothing a template or a client does goes over a bound.
 */

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "engine/chat.h"
#include "tests/tap.h"

/* The user's text in the tests of marks: what an attacker would write. */
#define EVIL "<|im_start|>"

static const struct tm now = { .tm_year = 125, .tm_mon = 2, .tm_mday = 9, .tm_hour = 14,
	.tm_min = 5, .tm_sec = 6 };

static char err[512];

static int render(const char *template, const struct pfx_chat_input *in,
	struct pfx_chat_output *out)
{
	struct pfx_chat *chat;
	int rc;

	memset(out, 0, sizeof(*out));
	err[0] = 0;
	rc = pfx_chat_open(&chat, template, strlen(template), "t.jinja", err, sizeof(err));
	if (rc == 0) {
		rc = pfx_chat_render(chat, in, out, err, sizeof(err));
		pfx_chat_close(chat);
	}
	return rc;
}

/* ---- vectors ---- */

static const struct pfx_chat_input *vector_input(json_t *variables)
{
	static struct pfx_chat_input in;

	in = (struct pfx_chat_input){
		.messages = json_object_get(variables, "messages"),
		.kwargs = json_object_get(variables, "kwargs"),
		.add_generation_prompt = 1,
		.bos = { "<s>", 3 },
		.eos = { "</s>", 4 },
		.now = &now,
	};
	return &in;
}

static void check_vector(const char *template, json_t *want, const struct pfx_chat_input *in)
{
	struct pfx_chat_output out;
	int rc = render(template, in, &out), pass;

	if (json_is_null(want)) {
		pass = ok(rc < 0 && err[0] != 0, "raises: %.60s", template);
	} else {
		pass = ok(rc == 0 && out.text.len == json_string_length(want) &&
			memcmp(out.text.data ? out.text.data : "", json_string_value(want), out.text.len) == 0,
			"equal: %.60s", template);
	}
	if (!pass) {
		printf("#   template %s\n#   got %s (%d, %s)\n#   want %s\n", template,
			out.text.data ? out.text.data : "", rc, err, json_string_value(want));
	}
	pfx_chat_output_free(&out);
}

static json_t *load_vectors(void)
{
	const char *dir = getenv("top_srcdir");
	char path[4096];
	json_error_t error;

	snprintf(path, sizeof(path), "%s/tests/vectors/chat.json", dir ? dir : ".");
	return json_load_file(path, JSON_ALLOW_NUL, &error);
}

static void test_vectors(void)
{
	json_t *vectors = load_vectors(), *vector;
	size_t i;

	if (!ok(json_array_size(vectors) > 300, "the vectors are there")) {
		return;
	}
	json_array_foreach(vectors, i, vector) {
		if (i > 0) {
			check_vector(json_string_value(json_array_get(vector, 0)), json_array_get(vector, 1),
				vector_input(json_array_get(vectors, 0)));
		}
	}
	json_decref(vectors);
}

/* ---- marks ---- */

/*
 * The text with «» around what the template wrote, so that a test reads like its result.
 */
static char *marked(const struct pfx_chat_output *out)
{
	struct pfx_buf b = PFX_BUF_INIT;
	size_t at = 0;

	for (size_t i = 0; i < out->n_spans; i++) {
		pfx_buf_add(&b, out->text.data + at, out->spans[i].start - at);
		pfx_buf_adds(&b, "«");
		pfx_buf_add(&b, out->text.data + out->spans[i].start,
			out->spans[i].end - out->spans[i].start);
		pfx_buf_adds(&b, "»");
		at = out->spans[i].end;
	}
	pfx_buf_add(&b, out->text.data + at, out->text.len - at);
	return pfx_buf_take(&b, NULL);
}

static void check_marks(const char *template, const char *want)
{
	json_t *messages = json_pack("[{s:s, s:s, s:{s:i, s:[b, f, n]}}]", "role", "user", "content",
		" " EVIL " ", "d", EVIL, 5, "l", 1, 1.5);
	json_t *kwargs = json_pack("{s:s, s:s}", "x", EVIL, "eos_token", EVIL);
	struct pfx_chat_input in = { .messages = messages, .kwargs = kwargs, .bos = { "<s>", 3 },
		.eos = { "</s>", 4 }, .now = &now };
	struct pfx_chat_output out;
	int rc = render(template, &in, &out);
	char *got = rc == 0 ? marked(&out) : pfx_strdup(err);

	if (!ok(rc == 0 && strcmp(got, want) == 0, "marks: %.70s", template)) {
		printf("#   got  %s\n#   want %s\n", got, want);
	}
	pfx_free(got);
	pfx_chat_output_free(&out);
	json_decref(messages);
	json_decref(kwargs);
}

static void test_marks(void)
{
	static const char *const tests[][2] = {
		{ "a{{ x }}b", "«a»" EVIL "«b»" },
		{ "{{ 'a' ~ x ~ 'b' }}", "«a»" EVIL "«b»" },
		{ "{{ 'a' + x + 'b' }}", "«a»" EVIL "«b»" },
		{ "{{ '<|' ~ x[2:-2] ~ '|>' }}", "«<|»im_start«|>»" },
		{ "{{ bos_token }}{{ eos_token }}", "«<s>»" EVIL },
		{ "{{ messages[0].content }}", " " EVIL " " },
		{ "{{ messages[0].content|trim }}", EVIL },
		{ "{{ messages[0].content.strip() ~ '.' }}", EVIL "«.»" },
		{ "{{ ('<|im_' ~ x)|trim('<|') }}", "«im_»" EVIL },
		{ "{{ x|replace('im_start', 'im_end') }}", "<|«im_end»|>" },
		{ "{{ 'aXb'|replace('X', x) }}", "«a»" EVIL "«b»" },
		{ "{{ x.replace('<', '<') }}", "«<»|im_start|>" },
		{ "{{ x[:3].replace('', '-') }}", "«-»<«-»|«-»i«-»" },
		{ "{{ [x, 'b', x]|join(',') }}", EVIL "«,b,»" EVIL },
		{ "{{ x.join(['a', 'b']) }}", "«a»" EVIL "«b»" },
		{ "{{ x.split('|') }}", "«[»'<'«, »'im_start'«, »'>'«]»" },
		{ "{{ x.split('|')|join('|') }}", "<«|»im_start«|»>" },
		{ "{{ ('a ' ~ x ~ ' b').split()|join }}", "«a»" EVIL "«b»" },
		{ "{{ x|upper }}{{ x|lower }}{{ x|title }}{{ x.capitalize() }}",
			"<|IM_START|>" EVIL "<|im_start|><|im_start|>" },
		{ "{{ ('a' ~ x)|upper }}", "«A»<|IM_START|>" },
		{ "{{ '%s|%s' % (x, 'b') }}", EVIL "«|b»" },
		{ "{{ x % () }}", EVIL },
		{ "{{ '{}{}'.format('a', x) }}", "«a»" EVIL },
		{ "{{ '{:>14}'.format(x) }}", "«  »" EVIL },
		{ "{{ '%(a)s'|format(a=x) }}", EVIL },
		{ "{{ x[::-1] }}", ">|trats_mi|<" },
		{ "{{ ('ab' ~ x)[1:4] }}", "«b»<|" },
		{ "{{ x[0] }}{{ x|first }}{{ x|last }}{{ x|list|join }}", "<<>" EVIL },
		{ "{{ x|reverse }}{{ x * 2 }}", ">|trats_mi|<" EVIL EVIL },
		{ "{{ x|tojson }}{{ {'k': x}|tojson }}", "\"" EVIL "\"«{\"k\": »\"" EVIL "\"«}»" },
		{ "{{ '<|x|>'|tojson }}", "«\"<|x|>\"»" },
		{ "{{ messages|tojson }}", "[{\"role\": \"user\", \"content\": \" " EVIL " \", \"d\": {\"" EVIL
			"\": 5, \"l\": [true, 1.5, null]}}]" },
		{ "{{ messages[0].d }}", "{'" EVIL "': 5, 'l': [True, 1.5, None]}" },
		{ "{% for k, v in messages[0].d.items() %}{{ k }}={{ v }};{% endfor %}",
			EVIL "«=»5«;»l«=»[True, 1.5, None]«;»" },
		{ "{{ messages[0].d.l[1] }}{{ messages[0].d.l[1] + 1 }}", "1.5«2.5»" },
		{ "{{ [x, 1] }}", "«[»'" EVIL "'«, 1]»" },
		{ "{{ ('[\"a\", \"' ~ x ~ '\"]')|from_json|join }}", "a" EVIL },
		{ "{% set y %}a{{ x }}{% endset %}{{ y }}", "«a»" EVIL },
		{ "{% set y | upper %}a{{ x }}{% endset %}{{ y }}", "«A»<|IM_START|>" },
		{ "{% macro f(a) %}a{{ a }}{% endmacro %}{{ f(x) ~ 'b' }}", "«a»" EVIL "«b»" },
		{ "{% macro f() %}[{{ caller() }}]{% endmacro %}{% call f() %}{{ x }}{% endcall %}",
			"«[»" EVIL "«]»" },
		{ "{% filter upper %}a{{ x }}{% endfilter %}", "«A»<|IM_START|>" },
		{ "{% set ns = namespace(y='a') %}{% set ns.y = ns.y ~ x %}{{ ns.y }}{{ ns }}",
			"«a»" EVIL "«<Namespace {'y': »'«a»" EVIL "'«}>»" },
		{ "{{ x if x else 'a' }}{{ x or 'a' }}{{ none or x }}", EVIL EVIL EVIL },
		{ "{{ missing|default(x) }}{{ x|default('a') }}", EVIL EVIL },
		{ "{{ [x]|map('upper')|first }}{{ messages|map(attribute='content')|join }}",
			"<|IM_START|> " EVIL " " },
		{ "{{ [x, '<|A|>']|sort|join }}{{ [x]|unique|list|first }}", "«<|A|>»" EVIL EVIL },
		{ "{{ ('a\n' ~ x)|indent(2) }}", "«a\n  »" EVIL },
		{ "{{ x|e }}{{ x|safe }}", "&lt;|im_start|&gt;" EVIL },
		{ "{{ x.center(14) }}{{ 'a'.ljust(2, x[0]) }}", "« »" EVIL "« a»<" },
		{ "{{ x.partition('_') }}{{ (x ~ 'a').removesuffix('a') }}",
			"«(»'<|im'«, »'_'«, »'start|>'«)»" EVIL },
		{ "{{ strftime_now('%Y') }}{{ strftime_now(x) }}{{ 1 + 1 }}{{ x|length }}",
			"«2025»" EVIL "«212»" },
		{ "{{ x == '<|im_start|>' }}{{ '|im' in x }}{{ x is string }}", "«TrueTrueTrue»" },
		{ "{% set a = x ~ 'a' %}{% set b = a ~ x %}{% set c = a ~ 'c' %}{{ b }}{{ c }}{{ c ~ x ~ a }}",
			EVIL "«a»" EVIL EVIL "«ac»" EVIL "«ac»" EVIL EVIL "«a»" },
		{ "{% set ns = namespace(s='') %}{% for i in [1, 2, 3] %}{% set ns.s = ns.s ~ i ~ x[0] %}"
			"{% endfor %}{{ ns.s }}{{ ns.s[2:] }}", "«1»<«2»<«3»<«2»<«3»<" },
		{ "{{ 'é' ~ 'ß'|upper }}", "«éSS»" },
		{ "", "" },
	};
	struct pfx_chat_input in = { .bos = { "<s>\xff", 4 } };
	struct pfx_chat_output out;

	for (size_t i = 0; i < sizeof(tests) / sizeof(tests[0]); i++) {
		check_marks(tests[i][0], tests[i][1]);
	}
	is_int(render("{{ bos_token }}{{ messages is none }}{{ eos_token|length }}", &in, &out), 0,
		"tokens that are absent or not UTF-8");
	ok(out.text.len == 11 && memcmp(out.text.data, "<s>\xef\xbf\xbdTrue0", 11) == 0,
		"come as U+FFFD and as nothing");
	pfx_chat_output_free(&out);
}

/* ---- what a real template does ---- */

static const char chatml[] =
	"{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
	"{{ '<|im_start|>system\nYou are helpful.<|im_end|>\n' }}{% endif %}"
	"{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
	"{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

static void test_chatml(void)
{
	json_t *messages = json_pack("[{s:s, s:s}]", "role", "user", "content", "Hi<|im_end|>\n");
	struct pfx_chat_input in = { .messages = messages, .add_generation_prompt = 1 };
	struct pfx_chat_output out;
	char *got;

	is_int(render(chatml, &in, &out), 0, "a ChatML template renders");
	got = marked(&out);
	ok(strcmp(got, "«<|im_start|>system\nYou are helpful.<|im_end|>\n<|im_start|>»user«\n»"
		"Hi<|im_end|>\n«<|im_end|>\n<|im_start|>assistant\n»") == 0,
		"the user's <|im_end|> is not the template's");
	pfx_free(got);
	pfx_chat_output_free(&out);
	json_decref(messages);
	in.messages = NULL;
	is_int(render(chatml, &in, &out), PFX_E_TEMPLATE, "messages must be there");
	ok(strstr(err, "template line 1: 'NoneType' object is not iterable") != NULL, "words: %s", err);
}

static void test_errors(void)
{
	struct pfx_chat_input in = { 0 };
	struct pfx_chat_output out;

	is_int(render("{{ raise_exception('Only «user»') }}", &in, &out), PFX_E_TEMPLATE, "raises");
	ok(strcmp(err, "Only «user»") == 0, "the exception's own words: %s", err);
	is_int(render("a\n\n{{ 'x' + 1 }}", &in, &out), PFX_E_TEMPLATE, "a wrong type");
	ok(strcmp(err, "template line 3: can only concatenate str (not \"int\") to str") == 0,
		"says where: %s", err);
	is_int(render("a\n{% if %}", &in, &out), PFX_E_FORMAT, "bad syntax");
	ok(strncmp(err, "t.jinja: line 2: ", 17) == 0, "names template and line: %s", err);
	is_int(render("{% include 'x' %}", &in, &out), PFX_E_UNSUPPORTED, "include");
	is_int(render("{{ 9223372036854775807 + 1 }}", &in, &out), PFX_E_TEMPLATE, "int overflow");
	is_int(render("{{ -9223372036854775807 - 2 }}", &in, &out), PFX_E_TEMPLATE, "and the other way");
	is_int(render("{{ 3037000500 * 3037000500 }}", &in, &out), PFX_E_TEMPLATE, "product");
	is_int(render("{{ 2 ** 63 }}", &in, &out), PFX_E_TEMPLATE, "power");
	is_int(render("{{ (-9223372036854775807 - 1) // -1 }}", &in, &out), PFX_E_TEMPLATE, "quotient");
	is_int(render("{{ (-9223372036854775807 - 1) % -1 }}", &in, &out), 0, "rest");
	pfx_chat_output_free(&out);
	is_int(render("{{ 99999999999999999999 }}", &in, &out), PFX_E_FORMAT, "literal");
	in.kwargs = json_array();
	is_int(render("x", &in, &out), -EINVAL, "kwargs that are no object");
	json_decref(in.kwargs);
}

/* ---- bounds ---- */

static void check_limit(const char *template, const char *what)
{
	json_t *kwargs = json_pack("{s:s}", "x", "<|im_start|>");
	struct pfx_chat_input in = { .kwargs = kwargs, .steps_max = 300000, .output_max = 1 << 20 };
	struct pfx_chat_output out;

	is_int(render(template, &in, &out), PFX_E_LIMIT, "%s: %.60s", what, template);
	ok(out.text.data == NULL && out.spans == NULL, "leaves nothing");
	json_decref(kwargs);
}

static char *repeated(const char *s, size_t n)
{
	struct pfx_buf b = PFX_BUF_INIT;

	for (size_t i = 0; i < n; i++) {
		pfx_buf_adds(&b, s);
	}
	return pfx_buf_take(&b, NULL);
}

static void test_limits(void)
{
	static const char *const nests[] = { "(", "[", "{1:", "-", "not ", "{% if 1 %}", "x(", "x[",
		"{%for(", "{{ 1 if " };
	char *text, *template;

	check_limit("{{ 'x' * 1000000000 }}", "text");
	check_limit("{{ 'x' * 1000 * 1000 * 1000 }}", "text");
	check_limit("{{ [1] * 1000000000 }}", "list");
	check_limit("{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
		"steps");
	check_limit("{% for i in range(100000) %}{{ 'abcdefghijklmnopqrstuvwxyz' }}{% endfor %}", "output");
	check_limit("{% set ns = namespace(s='ab') %}{% for i in range(99) %}{% set ns.s = ns.s ~ ns.s %}"
		"{% endfor %}", "text");
	check_limit("{% set ns = namespace(s=[1]) %}{% for i in range(99) %}{% set ns.s = ns.s + ns.s %}"
		"{% endfor %}", "list");
	check_limit("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "depth");
	check_limit("{% macro f(x) %}{{ f([x]) }}{% endmacro %}{{ f(1) }}", "depth");
	check_limit("{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}", "depth");
	check_limit("{% set l = [] %}{% set _ = l.append(l) %}{{ l }}", "a list in itself");
	check_limit("{% set l = [] %}{% set _ = l.append(l) %}{{ l|tojson }}", "a list in itself");
	check_limit("{% set l = [] %}{% set _ = l.append(l) %}{% set m = [] %}{% set _ = m.append(m) %}"
		"{{ l == m }}", "lists in themselves");
	check_limit("{% set l = [0] %}{% for x in l %}{% set _ = l.append(x) %}{% endfor %}", "endless");
	check_limit("{% set ns = namespace(l=1) %}{% for i in range(5000) %}{% set ns.l = [ns.l] %}"
		"{% endfor %}{{ ns.l }}", "deep values");
	check_limit("{{ '%999999999d' % 1 }}", "width");
	check_limit("{{ '{:999999999}'.format(1) }}", "width");
	check_limit("{{ 'x'|indent(1000000000) }}", "width");
	check_limit("{{ 'x'.center(1000000000) }}", "width");
	check_limit("{{ [1]|batch(1000000000, 0)|list }}", "width");
	check_limit("{% set s = 'ab' * 100000 %}{% for i in range(99999) %}{{ 'ba' * 9 in s[1:] }}"
		"{{ 'zz' in s }}{% endfor %}", "long scans");
	check_limit("{% set l = range(2000)|list %}{% for i in range(9999) %}{{ 'x' in l }}{% endfor %}",
		"long scans");
	for (size_t i = 0; i < sizeof(nests) / sizeof(nests[0]); i++) {
		struct pfx_chat_input in = { 0 };
		struct pfx_chat_output out;

		text = repeated(nests[i], 20000);
		template = pfx_malloc(strlen(text) + 4);
		strcpy(template, nests[i][0] == '{' && (nests[i][1] == '%' || nests[i][1] == '{') ? "" : "{{ ");
		strcat(template, text);
		ok(render(template, &in, &out) < 0, "20,000 times %s", nests[i]);
		pfx_free(template);
		pfx_free(text);
	}
	text = repeated("|e", 20000);
	template = pfx_malloc(strlen(text) + 20);
	sprintf(template, "{{ x%s }}", text);
	check_limit(template, "a long chain");
	pfx_free(template);
	pfx_free(text);
}

/* A client's nesting beyond ours is an answer, not a crash. */
static void test_deep_json(void)
{
	json_t *deep = json_array(), *outer;
	struct pfx_chat_output out;
	struct pfx_chat_input in = { 0 };

	for (int i = 0; i < 1900; i++) {
		outer = json_array();
		json_array_append_new(outer, deep);
		deep = outer;
	}
	in.messages = deep;
	is_int(render("{{ messages }}", &in, &out), PFX_E_LIMIT, "messages nested 1,900 deep");
	json_decref(deep);
}

/* ---- memory and threads ---- */

/* With an allocator that fails at random a render says -ENOMEM or is right. */
static void test_no_memory(void)
{
	json_t *vectors = load_vectors(), *vector;
	const struct pfx_chat_input *in = vector_input(json_array_get(vectors, 0));
	uint64_t live = pfx_alloc_live(), seed = 20;
	int wrong = 0, failed = 0, rc;
	struct pfx_chat_output out;
	json_t *want;

	for (uint32_t round = 0; round < 4; round++) {
		for (size_t i = 1; i < json_array_size(vectors); i++) {
			vector = json_array_get(vectors, i);
			want = json_array_get(vector, 1);
			pfx_alloc_fail(seed++, 2 + round * 2);
			rc = render(json_string_value(json_array_get(vector, 0)), in, &out);
			pfx_alloc_fail(0, 0);
			failed += rc == -ENOMEM;
			wrong += rc != -ENOMEM && json_is_null(want) != (rc < 0);
			wrong += rc == 0 && (out.text.len != json_string_length(want) ||
				memcmp(out.text.data ? out.text.data : "", json_string_value(want), out.text.len));
			pfx_chat_output_free(&out);
		}
	}
	ok(wrong == 0 && failed > 100, "%d renders without memory, %d wrong", failed, wrong);
	is_int((long long)(pfx_alloc_live() - live), 0, "nothing leaks");
	json_decref(vectors);
}

struct shared {
	struct pfx_chat *chat;
	json_t *messages;
	int bad;
};

static void *render_often(void *arg)
{
	struct shared *shared = arg;
	struct pfx_chat_input in = { .messages = shared->messages, .add_generation_prompt = 1 };
	struct pfx_chat_output out = { PFX_BUF_INIT, NULL, 0 };

	for (int i = 0; i < 300; i++) {
		if (pfx_chat_render(shared->chat, &in, &out, NULL, 0) < 0 || out.n_spans != 3) {
			__atomic_add_fetch(&shared->bad, 1, __ATOMIC_RELAXED);
		}
		pfx_chat_output_free(&out);
	}
	return NULL;
}

static void test_threads(void)
{
	struct shared shared = { .messages = json_pack("[{s:s, s:s}]", "role", "user", "content", "Hi") };
	pthread_t threads[4];

	is_int(pfx_chat_open(&shared.chat, chatml, strlen(chatml), "chatml", err, sizeof(err)), 0, "opens");
	for (int i = 0; i < 4; i++) {
		pthread_create(&threads[i], NULL, render_often, &shared);
	}
	for (int i = 0; i < 4; i++) {
		pthread_join(threads[i], NULL);
	}
	is_int(shared.bad, 0, "four threads render one template");
	pfx_chat_close(shared.chat);
	json_decref(shared.messages);
}

/* Text that grows in a loop costs what is added, in memory and in steps. */
static void test_growing(void)
{
	static const char template[] = "{% set ns = namespace(s='') %}{% for i in range(20000) %}"
		"{% set ns.s = ns.s ~ x ~ '<|sep|>' %}{% endfor %}{{ ns.s }}";
	struct pfx_chat_input in = { .kwargs = json_object(), .steps_max = 400000,
		.output_max = 4 << 20 };
	struct pfx_chat_output out;
	char *x = repeated("0123456789", 10);

	json_object_set_new(in.kwargs, "x", json_string(x));
	is_int(render(template, &in, &out), 0, "20,000 pieces are appended: %s", err);
	is_int((long long)out.text.len, 20000 * 107, "to 2 MB");
	is_int((long long)out.n_spans, 20000, "with the marks of each");
	pfx_chat_output_free(&out);
	pfx_free(x);
	json_decref(in.kwargs);
}

/* Names and hashes: a dict of the client's with many keys. */
static void test_many_keys(void)
{
	struct pfx_chat_input in = { .kwargs = json_object() };
	struct pfx_chat_output out;
	json_t *d = json_object();
	char key[32];

	for (int i = 0; i < 20000; i++) {
		snprintf(key, sizeof(key), "key%d", i);
		json_object_set_new(d, key, json_integer(i));
	}
	json_object_set_new(in.kwargs, "d", d);
	is_int(render("{{ d|length }} {{ d['key19999'] }} {{ d.key7 }} {{ 'key20000' in d }} "
		"{{ d.pop('key3') }} {{ d['key3'] is defined }} {{ d.key4 }}", &in, &out), 0, "20,000 keys");
	ok(out.text.data != NULL && strcmp(out.text.data, "20000 19999 7 False 3 False 4") == 0,
		"are found: %s", out.text.data);
	pfx_chat_output_free(&out);
	json_decref(in.kwargs);
}

int main(void)
{
	uint64_t live = pfx_alloc_live();

	test_vectors();
	test_marks();
	test_chatml();
	test_errors();
	test_limits();
	test_deep_json();
	test_no_memory();
	test_threads();
	test_growing();
	test_many_keys();
	is_int((long long)(pfx_alloc_live() - live), 0, "all memory is given back");
	return tap_done();
}

#include "tests/model_tiny.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/rng.h"
#include "base/utf8.h"

static const char chatml[] =
	"{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + "
	"message['content'] + '<|im_end|>' + '\\n' }}{% endfor %}"
	"{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

static const char *const specials[] = { "<|endoftext|>", "<|im_start|>", "<|im_end|>" };
#define N_SPECIALS 3

/* By rank; both halves are single bytes or stand above. */
static const char *const merges[] = {
	"Ġ t", "Ġ a", "h e", "i n", "r e", "Ġt he", "o n", "e r", "Ġ s", "a t", "e n",
	"o r", "i s", "Ġ w", "n d", "Ġa nd", "Ġ o", "e s", "o u", "i t", "in g", "Ġo f",
	"Ġt o", "e d", "a n", "Ġ c", "Ġ p", "Ġ in", "a r", "a l", "Ġ b", "Ġ m", "Ġ f",
	"Ġ d", "Ġ h", "Ġ y", "Ġy ou", "u s", "l l", "Ġ g", "Ġ l", "Ġ n", "s t", "i c",
	"l e", "Ġ e", "Ċ Ċ", "Ġ Ġ", "ĠĠ ĠĠ", "us er", "Ġ is", "Ġt h", "Ġth at", "o t",
	"v e", "Ġb e", "i on", "a s", "r o", "0 0", "1 9",
};
#define N_MERGES (sizeof(merges) / sizeof(merges[0]))

_Static_assert(N_SPECIALS + 256 + N_MERGES == PFX_TINY_VOCAB, "PFX_TINY_VOCAB");

/* --- tokenizer ------------------------------------------------------------------- */

/* The letter that byte-level BPE writes for a byte: itself when it prints, else 256 + n. */
static void byte_letter(unsigned byte, char out[5])
{
	uint32_t cp = byte, n = 0;

	for (unsigned b = 0; b <= byte; b++) {
		int prints = (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
		if (b == byte && !prints) {
			cp = 256 + n;
		}
		n += !prints;
	}
	out[pfx_utf8_put(cp, out)] = '\0';
}

static void write_tokenizer(struct pfx_gw *w, const char *chat_template)
{
	static char text[PFX_TINY_VOCAB][32];
	const char *tokens[PFX_TINY_VOCAB];
	int32_t types[PFX_TINY_VOCAB];

	for (uint32_t i = 0; i < PFX_TINY_VOCAB; i++) {
		tokens[i] = text[i];
		types[i] = i < N_SPECIALS ? 3 : 1;
		if (i < N_SPECIALS) {
			strcpy(text[i], specials[i]);
		} else if (i < N_SPECIALS + 256) {
			byte_letter(i - N_SPECIALS, text[i]);
		} else {
			const char *merge = merges[i - N_SPECIALS - 256], *gap = strchr(merge, ' ');
			snprintf(text[i], sizeof(text[i]), "%.*s%s", (int)(gap - merge), merge,
				gap + 1);
		}
	}
	pfx_gw_str(w, "tokenizer.ggml.model", "gpt2");
	pfx_gw_str(w, "tokenizer.ggml.pre", "smollm");
	pfx_gw_strs(w, "tokenizer.ggml.tokens", tokens, NULL, PFX_TINY_VOCAB);
	pfx_gw_i32s(w, "tokenizer.ggml.token_type", types, PFX_TINY_VOCAB);
	pfx_gw_strs(w, "tokenizer.ggml.merges", merges, NULL, N_MERGES);
	pfx_gw_u32(w, "tokenizer.ggml.bos_token_id", 1);
	pfx_gw_u32(w, "tokenizer.ggml.eos_token_id", 2);
	pfx_gw_u32(w, "tokenizer.ggml.unknown_token_id", 0);
	pfx_gw_u32(w, "tokenizer.ggml.padding_token_id", 2);
	pfx_gw_bool(w, "tokenizer.ggml.add_bos_token", 0);
	pfx_gw_bool(w, "tokenizer.ggml.add_space_prefix", 0);
	pfx_gw_str(w, "tokenizer.chat_template", chat_template);
}

/* --- weights --------------------------------------------------------------------- */

/* Close to normal, mean 0, deviation 1, from integers alone: equal on every machine. */
static float normal(struct pfx_rng *rng)
{
	uint64_t r = pfx_rng_next(rng);
	int32_t sum = (int32_t)((r & 0xffff) + (r >> 16 & 0xffff) + (r >> 32 & 0xffff) + (r >> 48));

	return (float)(sum - 2 * 65535) / 37837.0f;
}

static void put_f16(uint8_t **p, float v)
{
	uint16_t h = pfx_f32_to_f16(v);

	memcpy(*p, &h, sizeof(h));
	*p += sizeof(h);
}

static void put_random(uint8_t **p, struct pfx_rng *rng, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		*(*p)++ = (uint8_t)pfx_rng_next(rng);
	}
}

static void put_float(uint8_t **p, enum pfx_dtype type, float v)
{
	uint32_t bits;

	memcpy(&bits, &v, sizeof(bits));
	if (type == PFX_F32) {
		memcpy(*p, &bits, 4);
		*p += 4;
	} else if (type == PFX_BF16) {
		bits += 0x8000;
		(*p)[0] = (uint8_t)(bits >> 16);
		(*p)[1] = (uint8_t)(bits >> 24);
		*p += 2;
	} else {
		put_f16(p, v);
	}
}

/*
 * One block of a quantised type: random codes, and a scale d that gives elements a deviation
 * near sd. Codes of b bits have a deviation of 2^b / sqrt(12).
 */
static void put_block(uint8_t **p, enum pfx_dtype type, float sd, struct pfx_rng *rng)
{
	float d = sd * (0.75f + (float)(pfx_rng_next(rng) & 0xff) / 512.0f);

	switch (type) {
	case PFX_Q4_0:
		put_f16(p, d / 4.6f);
		put_random(p, rng, 16);
		break;
	case PFX_Q4_1:
		put_f16(p, d / 4.6f);
		put_f16(p, -7.5f * d / 4.6f);
		put_random(p, rng, 16);
		break;
	case PFX_Q5_0:
		put_f16(p, d / 9.2f);
		put_random(p, rng, 4 + 16);
		break;
	case PFX_Q5_1:
		put_f16(p, d / 9.2f);
		put_f16(p, -15.5f * d / 9.2f);
		put_random(p, rng, 4 + 16);
		break;
	case PFX_Q8_0:
		put_f16(p, d / 74.0f);
		put_random(p, rng, 32);
		break;
	case PFX_Q4_K: /* scale and minimum have 6-bit factors of their own, about 32 each */
		put_f16(p, d / (4.6f * 64.0f));
		put_f16(p, 7.5f * d / (4.6f * 64.0f));
		put_random(p, rng, 12 + 128);
		break;
	case PFX_Q5_K:
		put_f16(p, d / (9.2f * 64.0f));
		put_f16(p, 15.5f * d / (9.2f * 64.0f));
		put_random(p, rng, 12 + 32 + 128);
		break;
	case PFX_Q6_K:
		put_random(p, rng, 128 + 64 + 16);
		put_f16(p, d / (18.5f * 74.0f));
		break;
	case PFX_F32: case PFX_F16: case PFX_BF16:
		put_float(p, type, sd * normal(rng));
		break;
	}
}

struct maker {
	struct pfx_gw *w;
	struct pfx_rng rng;
};

static void add_tensor(struct maker *k, const char *name, enum pfx_dtype type, uint64_t n_in,
	uint64_t n_out, float sd)
{
	const struct pfx_dtype_info *info = pfx_dtype_info(type);
	uint64_t dims[2] = { n_in, n_out };
	size_t bytes = pfx_dtype_row_bytes(type, n_in) * n_out;
	uint8_t *data = malloc(bytes ? bytes : 1), *p = data;

	PFX_ASSERT(data != NULL && info != NULL && bytes > 0);
	while (p < data + bytes) {
		put_block(&p, type, sd, &k->rng);
	}
	PFX_ASSERT(p == data + bytes);
	pfx_gw_tensor(k->w, name, type, 2, dims, data, bytes);
	free(data);
}

static void add_vector(struct maker *k, const char *name, uint64_t n, float mean, float sd)
{
	float *v = malloc(n * sizeof(*v));

	PFX_ASSERT(v != NULL);
	for (uint64_t i = 0; i < n; i++) {
		v[i] = mean + sd * normal(&k->rng);
	}
	pfx_gw_tensor(k->w, name, PFX_F32, 1, &n, v, n * sizeof(*v));
	free(v);
}

static void add_layer(struct maker *k, const struct pfx_tiny_opts *o, uint32_t i)
{
	uint32_t n_q = o->n_heads * o->head_dim, n_kv = o->n_kv_heads * o->head_dim;
	float in = 1.0f / sqrtf((float)o->n_embd);
	const struct {
		const char *name;
		uint32_t n_in, n_out;
		float sd;
	} matrices[] = {
		/* Scores with a deviation above 1, so that attention looks somewhere. */
		{ "attn_q", o->n_embd, n_q, 1.5f * in },
		{ "attn_k", o->n_embd, n_kv, 1.5f * in },
		{ "attn_v", o->n_embd, n_kv, in },
		{ "attn_output", n_q, o->n_embd, 1.0f / sqrtf((float)n_q) },
		{ "ffn_gate", o->n_embd, o->n_ff, in },
		{ "ffn_up", o->n_embd, o->n_ff, in },
		{ "ffn_down", o->n_ff, o->n_embd, 1.0f / sqrtf((float)o->n_ff) },
	};
	char name[64];

	for (size_t j = 0; j < sizeof(matrices) / sizeof(matrices[0]); j++) {
		snprintf(name, sizeof(name), "blk.%u.%s.weight", i, matrices[j].name);
		add_tensor(k, name, o->type, matrices[j].n_in, matrices[j].n_out, matrices[j].sd);
	}
	for (size_t j = 0; o->bias && j < 3; j++) {
		snprintf(name, sizeof(name), "blk.%u.%s.bias", i, matrices[j].name);
		add_vector(k, name, matrices[j].n_out, 0.0f, 0.5f);
	}
	snprintf(name, sizeof(name), "blk.%u.attn_norm.weight", i);
	add_vector(k, name, o->n_embd, 1.0f, 0.1f);
	snprintf(name, sizeof(name), "blk.%u.ffn_norm.weight", i);
	add_vector(k, name, o->n_embd, 1.0f, 0.1f);
	if (strcmp(o->architecture, "qwen3") == 0) {
		snprintf(name, sizeof(name), "blk.%u.attn_q_norm.weight", i);
		add_vector(k, name, o->head_dim, 1.2f, 0.1f);
		snprintf(name, sizeof(name), "blk.%u.attn_k_norm.weight", i);
		add_vector(k, name, o->head_dim, 1.2f, 0.1f);
	}
}

/* --- the file -------------------------------------------------------------------- */

static void key_u32(struct pfx_gw *w, const char *arch, const char *key, uint32_t v)
{
	char name[96];

	snprintf(name, sizeof(name), "%s.%s", arch, key);
	pfx_gw_u32(w, name, v);
}

static void key_f32(struct pfx_gw *w, const char *arch, const char *key, float v)
{
	char name[96];

	snprintf(name, sizeof(name), "%s.%s", arch, key);
	pfx_gw_f32(w, name, v);
}

static void write_config(struct pfx_gw *w, const struct pfx_tiny_opts *o)
{
	const char *a = o->architecture;
	char key[96];

	pfx_gw_str(w, "general.architecture", a);
	pfx_gw_str(w, "general.name", "tiny");
	key_u32(w, a, "block_count", o->n_layers);
	key_u32(w, a, "context_length", o->n_ctx);
	key_u32(w, a, "embedding_length", o->n_embd);
	key_u32(w, a, "feed_forward_length", o->n_ff);
	key_u32(w, a, "attention.head_count", o->n_heads);
	key_u32(w, a, "attention.head_count_kv", o->n_kv_heads);
	key_u32(w, a, "attention.key_length", o->head_dim);
	key_u32(w, a, "attention.value_length", o->head_dim);
	key_f32(w, a, "attention.layer_norm_rms_epsilon", 1e-5f);
	key_f32(w, a, "rope.freq_base", 10000.0f);
	key_u32(w, a, "rope.dimension_count", o->rope_dims);
	key_u32(w, a, "vocab_size", PFX_TINY_VOCAB);
	if (o->rope == PFX_TINY_ROPE_LINEAR || o->rope == PFX_TINY_ROPE_YARN) {
		snprintf(key, sizeof(key), "%s.rope.scaling.type", a);
		pfx_gw_str(w, key, o->rope == PFX_TINY_ROPE_YARN ? "yarn" : "linear");
		key_f32(w, a, "rope.scaling.factor", 4.0f);
	}
	if (o->rope == PFX_TINY_ROPE_YARN) {
		key_u32(w, a, "rope.scaling.original_context_length", o->n_ctx / 4);
	}
}

static struct pfx_tiny_opts with_defaults(const struct pfx_tiny_opts *opts)
{
	struct pfx_tiny_opts o = *opts;

	o.architecture = o.architecture != NULL ? o.architecture : "llama";
	o.chat_template = o.chat_template != NULL ? o.chat_template : chatml;
	o.n_layers = o.n_layers ? o.n_layers : 2;
	o.n_heads = o.n_heads ? o.n_heads : 4;
	o.n_kv_heads = o.n_kv_heads ? o.n_kv_heads : 2;
	o.head_dim = o.head_dim ? o.head_dim : 32;
	o.n_embd = o.n_embd ? o.n_embd : o.n_heads * o.head_dim;
	o.n_ff = o.n_ff ? o.n_ff : 2 * o.n_embd;
	o.n_ctx = o.n_ctx ? o.n_ctx : 2048;
	o.rope_dims = o.rope_dims ? o.rope_dims : o.head_dim;
	o.bias |= strcmp(o.architecture, "qwen2") == 0;
	return o;
}

void pfx_tiny_write(struct pfx_gw *w, const struct pfx_tiny_opts *opts)
{
	struct pfx_tiny_opts o = with_defaults(opts);
	struct maker k = { w, { pfx_rng_mix(o.seed, 0x7e11) } };
	uint64_t n_pairs = o.rope_dims / 2;
	float *factors;

	write_config(w, &o);
	write_tokenizer(w, o.chat_template);
	add_tensor(&k, "token_embd.weight", o.embed_type, o.n_embd, PFX_TINY_VOCAB, 0.2f);
	add_vector(&k, "output_norm.weight", o.n_embd, 1.0f, 0.1f);
	if (o.untied) {
		add_tensor(&k, "output.weight", o.embed_type, o.n_embd, PFX_TINY_VOCAB, 0.2f);
	}
	if (o.rope == PFX_TINY_ROPE_FACTORS) {
		factors = malloc(n_pairs * sizeof(*factors));
		PFX_ASSERT(factors != NULL);
		for (uint64_t i = 0; i < n_pairs; i++) {
			factors[i] = i < n_pairs / 2 ? 1.0f : i < 3 * n_pairs / 4 ? 2.5f : 8.0f;
		}
		pfx_gw_tensor(w, "rope_freqs.weight", PFX_F32, 1, &n_pairs, factors,
			n_pairs * sizeof(*factors));
		free(factors);
	}
	for (uint32_t i = 0; i < o.n_layers; i++) {
		add_layer(&k, &o, i);
	}
}

int pfx_tiny_save(const char *path, const struct pfx_tiny_opts *opts)
{
	struct pfx_gw w = { 0 };
	int rc;

	pfx_tiny_write(&w, opts);
	rc = pfx_gw_save(&w, path);
	pfx_gw_free(&w);
	return rc;
}

/* --- options in words ------------------------------------------------------------ */

static int parse_type(const char *name, enum pfx_dtype *out)
{
	for (uint32_t t = 0; t < 64; t++) {
		const struct pfx_dtype_info *info = pfx_dtype_info(t);
		if (info != NULL && strcmp(info->name, name) == 0) {
			*out = (enum pfx_dtype)t;
			return 0;
		}
	}
	return -1;
}

static int parse_rope(const char *name, enum pfx_tiny_rope *out)
{
	static const char *const names[] = { "plain", "linear", "yarn", "factors" };

	for (int i = 0; i < 4; i++) {
		if (strcmp(name, names[i]) == 0) {
			*out = (enum pfx_tiny_rope)i;
			return 0;
		}
	}
	return -1;
}

static int parse_number(struct pfx_tiny_opts *o, const char *key, uint32_t v)
{
	struct {
		const char *key;
		uint32_t *v;
	} numbers[] = {
		{ "layers", &o->n_layers }, { "heads", &o->n_heads },
		{ "kv_heads", &o->n_kv_heads }, { "head_dim", &o->head_dim },
		{ "embd", &o->n_embd }, { "ff", &o->n_ff }, { "ctx", &o->n_ctx },
		{ "rope_dims", &o->rope_dims },
	};

	for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
		if (strcmp(key, numbers[i].key) == 0) {
			*numbers[i].v = v;
			return 0;
		}
	}
	return -1;
}

int pfx_tiny_parse(struct pfx_tiny_opts *o, char *arg)
{
	char *v = strchr(arg, '=');

	if (v == NULL) {
		return -1;
	}
	*v++ = '\0';
	if (strcmp(arg, "seed") == 0) {
		o->seed = strtoull(v, NULL, 10);
		return 0;
	}
	if (strcmp(arg, "arch") == 0) {
		o->architecture = v;
		return 0;
	}
	if (strcmp(arg, "type") == 0) {
		return parse_type(v, &o->type);
	}
	if (strcmp(arg, "embed") == 0) {
		return parse_type(v, &o->embed_type);
	}
	if (strcmp(arg, "rope") == 0) {
		return parse_rope(v, &o->rope);
	}
	if (strcmp(arg, "untied") == 0 || strcmp(arg, "bias") == 0) {
		*(arg[0] == 'u' ? &o->untied : &o->bias) = atoi(v);
		return 0;
	}
	return parse_number(o, arg, (uint32_t)strtoul(v, NULL, 10));
}

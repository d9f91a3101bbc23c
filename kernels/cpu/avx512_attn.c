/*
 * Attention of the variants avx512 and amx. A file of its own, since it is long to compile and both
 * have it.
 */
#include "config.h"

#include <immintrin.h>
#include <math.h>
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/exp2.h"
#include "kernels/cpu/target.h"

TARGET_BEGIN("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")

#include "kernels/cpu/vec_avx512.h"
#include "kernels/cpu/vec_exp2.h"
#include "kernels/cpu/vec_attn.h"

void pfx_avx512_attn(const struct pfx_attn *a)
{
	attn(a);
}

float pfx_avx512_attn_query(const float *x, uint32_t dim, uint32_t dim_pad, float factor, int16_t *q)
{
	return attn_query(x, dim, dim_pad, factor, q);
}

void pfx_avx512_attn_merge(uint32_t dim_pad, float *run_m, float *run_l, float *run_o, float m,
	float l, const float *o)
{
	attn_merge(dim_pad, run_m, run_l, run_o, m, l, o);
}

TARGET_END

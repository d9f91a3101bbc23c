/*
 * 2^x over vectors of 16 floats (exp2.h), for vec_small.h and vec_attn.h; included before them.
 */

/* For x that is not above PFX_EXP2_MAX. */
static inline v16 v_exp2_low(v16 x)
{
	v16 magic = v_set1(PFX_EXP2_MAGIC), t, f, p;

	x = v_max(v_set1(PFX_EXP2_MIN), x); /* in this order NaN goes through */
	t = v_add(x, magic);
	f = v_sub(x, v_sub(t, magic));
	p = v_fma(v_set1(PFX_EXP2_C6), f, v_set1(PFX_EXP2_C5));
	p = v_fma(p, f, v_set1(PFX_EXP2_C4));
	p = v_fma(p, f, v_set1(PFX_EXP2_C3));
	p = v_fma(p, f, v_set1(PFX_EXP2_C2));
	p = v_fma(p, f, v_set1(PFX_EXP2_C1));
	p = v_fma(p, f, v_set1(1.0f));
	return v_add_exponent(p, t);
}

static inline v16 v_exp2(v16 x)
{
	return v_exp2_low(v_min(v_set1(PFX_EXP2_MAX), x));
}

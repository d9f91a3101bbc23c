#ifndef PFX_KERNELS_CPU_EXP2_H
#define PFX_KERNELS_CPU_EXP2_H

/*
 * 2^x for softmax and the activations, the same operations in every variant: x is clamped to
 * [-125, 127] and split into its nearest integer n and f in [-1/2, 1/2] by adding and
 * taking off 1.5 * 2^23 (whose low bits then hold n); 2^f is a polynomial, whose exponent n is
 * added to. Relative error below 2.5e-7; exactly 1 at 0. The coefficients are a minimax fit in
 * relative error with the constant fixed at 1, rounded to float32.
 */
#define PFX_EXP2_MIN -125.0f
#define PFX_EXP2_MAX 127.0f
#define PFX_EXP2_MAGIC 12582912.0f
#define PFX_EXP2_C1 0x1.62e43p-1f
#define PFX_EXP2_C2 0x1.ebfbdcp-3f
#define PFX_EXP2_C3 0x1.c6aee8p-5f
#define PFX_EXP2_C4 0x1.3b2d4cp-7f
#define PFX_EXP2_C5 0x1.5f3e54p-10f
#define PFX_EXP2_C6 0x1.41fbbcp-13f

#define PFX_LOG2E 1.44269504f
/* gelu_tanh(x) = x / (1 + 2^(x (A + B x^2))): A = -2 log2(e) sqrt(2/pi), B = 0.044715 A. */
#define PFX_GELU_A -2.30220819f
#define PFX_GELU_B -0.102943240f

#endif

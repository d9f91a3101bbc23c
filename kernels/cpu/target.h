#ifndef PFX_KERNELS_CPU_TARGET_H
#define PFX_KERNELS_CPU_TARGET_H

/*
 * What a fast variant's file needs of the compiler. Everything between TARGET_BEGIN and
 * TARGET_END is compiled for the instruction sets named, whatever the flags of the build;
 * it runs only after the variant's usable() has looked at the CPU.
 */

#define PFX_PRAGMA(x) _Pragma(#x)

#ifdef __clang__
#define TARGET_BEGIN(isa) \
	PFX_PRAGMA(clang attribute push(__attribute__((target(isa))), apply_to = function))
#define TARGET_END _Pragma("clang attribute pop")
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define TARGET_BEGIN(isa) _Pragma("GCC push_options") PFX_PRAGMA(GCC target(isa))
#define TARGET_END _Pragma("GCC pop_options")
#define UNROLL _Pragma("GCC unroll 16")
#endif

#endif

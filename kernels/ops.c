#include "kernels/ops.h"

#include <string.h>

#include "base/error.h"
#include "kernels/cpu/cpu.h"

const struct pfx_ops *pfx_ops_find(const char *backend, char *err, size_t errlen)
{
	if (backend == NULL || strcmp(backend, "auto") == 0 || strcmp(backend, "cpu") == 0) {
		return &pfx_cpu_ops;
	}
	if (strcmp(backend, "cuda") == 0) {
		pfx_fail(PFX_E_UNSUPPORTED, err, errlen,
			"backend \"cuda\": this prefixd was built without CUDA; use \"cpu\" or \"auto\"");
	} else {
		pfx_fail(PFX_E_UNSUPPORTED, err, errlen,
			"backend \"%s\": unknown; one of \"auto\", \"cpu\", \"cuda\"", backend);
	}
	return NULL;
}

#ifndef PFX_TESTS_FAKE_VIEW_H
#define PFX_TESTS_FAKE_VIEW_H

#include <jansson.h>

#include "engine/engine.h"

/* The report of a job of the operator's view, and its event's name; NULL for other jobs. */
json_t *fake_view_report(const struct pfx_job *job, const char **name);

#endif

/* The NVLinks of a GPU. */

#ifndef LINK_H
#define LINK_H

#include "call.h"

bool link_is_up(const struct gpu *, unsigned int number);

/* Returns the value of a field that depends on the GPU's links; NOT_FOUND for other fields. */
nvmlReturn_t link_field(const struct call *, const struct gpu *, unsigned int id, unsigned int scope, int64_t *out);

#endif

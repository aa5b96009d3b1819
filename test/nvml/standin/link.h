/* The NVLinks of a GPU. */

#ifndef LINK_H
#define LINK_H

#include "call.h"

bool link_is_up(const struct gpu *, unsigned int number);

/* Answers the fields that follow from what a GPU is linked to; NOT_FOUND for all others. */
nvmlReturn_t link_field(const struct call *, const struct gpu *, unsigned int id, unsigned int scope, int64_t *out);

#endif

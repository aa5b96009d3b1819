/* Error counters of a GPU. */

#ifndef FAULTS_H
#define FAULTS_H

#include "call.h"

/* Returns the ECC errors of a kind in all memories; false for a GPU without ECC counters. */
bool count_ecc(const struct call *, nvmlMemoryErrorType_t, nvmlEccCounterType_t, int64_t *out);

#endif

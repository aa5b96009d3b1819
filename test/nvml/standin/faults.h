/* The errors that a GPU has counted. */

#ifndef FAULTS_H
#define FAULTS_H

#include "call.h"

/* Counts the ECC errors of a kind, wherever they are. Returns false for a GPU that does not. */
bool count_ecc(const struct call *, nvmlMemoryErrorType_t, nvmlEccCounterType_t, int64_t *out);

#endif

/* The names of things: functions and return codes, as NVML's header has them. */

#ifndef NAMES_H
#define NAMES_H

#include <stdbool.h>

#include "functions.h"
#include "nvml.h"

/* Every function that the header declares has a number: its place in the alphabet. */
enum {
#define X(name) FUNCTION_##name,
    FUNCTIONS(X)
#undef X
    FUNCTION_COUNT
};

extern const char *const function_names[FUNCTION_COUNT];

/* Returns a function's number, or -1. */
int function_named(const char *name);

/* Takes a return code as the header writes it, with or without NVML_ERROR_, or as a number. */
bool return_named(const char *name, nvmlReturn_t *out);

/* Describes a return code. */
const char *return_text(nvmlReturn_t);

#endif

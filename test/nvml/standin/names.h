/* Names of functions and return codes in NVML's header. */

#ifndef NAMES_H
#define NAMES_H

#include <stdbool.h>

#include "functions.h"
#include "nvml.h"

/* Each function of the header has a number, in alphabetical order. */
enum {
#define X(name) FUNCTION_##name,
    FUNCTIONS(X)
#undef X
    FUNCTION_COUNT
};

extern const char *const function_names[FUNCTION_COUNT];

/* Returns a function's number, or -1. */
int find_function(const char *name);

/* Parses a return code: a name of the header, with or without NVML_ERROR_, or a number. */
bool parse_return(const char *name, nvmlReturn_t *out);

/* Describes a return code. */
const char *return_text(nvmlReturn_t);

#endif

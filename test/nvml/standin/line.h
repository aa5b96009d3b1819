/* The words of a scenario line. */

#ifndef LINE_H
#define LINE_H

#include "scenario.h"

/* The line that the parser reads. Words are taken from the front. */
struct line {
    const char *path;
    int number;
    char *rest;
    gpu_set all; /* selected by * */
};

#define ALL_GPUS (((gpu_set)1 << MAX_GPUS) - 1)

/* Reports a problem of the line on standard error, and returns false. */
__attribute__((format(printf, 2, 3))) bool report(const struct line *, const char *format, ...);

/* Takes the next word; "" at the end of the line. */
char *take(struct line *);

/* Takes the rest of the line, including blanks inside. */
char *take_rest(struct line *);

/* Reads an integer of 64 bits, signed or unsigned, in decimal or as 0x…, and advances the text. */
bool scan_number(const char **text, int64_t *out);
bool scan_decimal(const char **text, double *out);

/* These functions take a word and report an invalid word. */
bool take_number(struct line *, const char *what, int64_t min, int64_t max, int64_t *out);
bool take_curve(struct line *, struct curve *);
bool take_gpus(struct line *, bool or_none, gpu_set *out);

/* A named number, value over time or text of a line: "gi 3". */
struct pair {
    const char *word;
    unsigned long long *number;
    struct curve *curve;
    char *text;
    size_t size; /* of the text */
};

/* Takes pairs in any order up to the end of the line. */
bool take_pairs(struct line *, const struct pair *, size_t count);

enum { UNSET_ID = 0xFFFFFFFF }; /* the header's id for no instance */

/* Adds space for an item and returns its address. */
void *append(void **items, size_t *count, size_t size);

#define APPEND(list, ...) \
    (*(__typeof__((list)->items))append((void **)&(list)->items, &(list)->count, sizeof *(list)->items) = (__VA_ARGS__))

#endif

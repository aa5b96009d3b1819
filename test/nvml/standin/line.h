/* The words of a scenario's line, and what they can say. */

#ifndef LINE_H
#define LINE_H

#include "scenario.h"

/* The line that is being read. Its words are taken from the front. */
struct line {
    const char *path;
    int number;
    char *rest;
    gpu_set all; /* what * selects */
};

#define ALL_GPUS (((gpu_set)1 << MAX_GPUS) - 1)

/* Says on standard error what is wrong with the line, and returns false. */
__attribute__((format(printf, 2, 3))) bool complain(const struct line *, const char *format, ...);

/* Takes the next word; "" at the end of the line. */
char *take(struct line *);

/* Takes all that is left, blanks inside included. */
char *take_rest(struct line *);

/* Reads a whole number, in decimal or as 0x…, of 64 bits with or without a sign, and moves on behind it. */
bool scan_number(const char **text, int64_t *out);
bool scan_decimal(const char **text, double *out);

/* Each of these takes a word and complains of one that it does not understand. */
bool take_number(struct line *, const char *what, int64_t min, int64_t max, int64_t *out);
bool take_curve(struct line *, struct curve *);
bool take_gpus(struct line *, bool or_none, gpu_set *out);

/* A number, a value over time or a text that a line names: "gi 3". */
struct pair {
    const char *word;
    unsigned long long *number;
    struct curve *curve;
    char *text;
    size_t size; /* of the text */
};

/* Takes pairs, in any order, until the line ends. */
bool take_pairs(struct line *, const struct pair *, size_t count);

enum { UNSET_ID = 0xFFFFFFFF }; /* what the header gives for the ids of an instance that is none */

/* Makes room for one more item and returns where it goes. */
void *append(void **items, size_t *count, size_t size);

#define APPEND(list, ...) \
    (*(__typeof__((list)->items))append((void **)&(list)->items, &(list)->count, sizeof *(list)->items) = (__VA_ARGS__))

#endif

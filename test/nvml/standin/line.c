#include "line.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char blanks[] = " \t\r";

bool report(const struct line *l, const char *format, ...)
{
    char problem[256];
    va_list args;
    va_start(args, format);
    vsnprintf(problem, sizeof problem, format, args);
    va_end(args);
    fprintf(stderr, "nvml stand-in: %s:%d: %s; keeping the previous scenario\n", l->path, l->number, problem);
    return false;
}

char *take(struct line *l)
{
    char *word = l->rest + strspn(l->rest, blanks);
    char *end = word + strcspn(word, blanks);
    l->rest = *end ? end + 1 : end;
    *end = '\0';
    return word;
}

char *take_rest(struct line *l)
{
    char *text = l->rest + strspn(l->rest, blanks);
    char *end = text + strlen(text);
    while (end > text && strchr(blanks, end[-1]))
        end--;
    *end = '\0';
    l->rest = end;
    return text;
}

bool scan_number(const char **text, int64_t *out)
{
    char *end;
    *out = **text == '-' ? (int64_t)strtoll(*text, &end, 0) : (int64_t)strtoull(*text, &end, 0);
    bool read = end != *text;
    *text = end;
    return read;
}

bool scan_decimal(const char **text, double *out)
{
    char *end;
    *out = strtod(*text, &end);
    bool read = end != *text;
    *text = end;
    return read;
}

bool take_number(struct line *l, const char *what, int64_t min, int64_t max, int64_t *out)
{
    const char *word = take(l), *end = word;
    if (!scan_number(&end, out) || *end || *out < min || *out > max)
        return report(l, "%s is \"%s\", want a number from %lld to %lld", what, word, (long long)min, (long long)max);
    return true;
}

/* A curve is "none", "<base>", "<base>+<slope>/s" or "<base>~<top>/<period>s". */
static bool scan_curve(const char *text, struct curve *c)
{
    *c = (struct curve){.shape = ABSENT};
    if (strcmp(text, "none") == 0)
        return true;
    if (!scan_number(&text, &c->base))
        return false;
    c->shape = *text == '+' ? LINE : *text == '~' ? WAVE : CONSTANT;
    if (c->shape == CONSTANT)
        return *text == '\0';
    text++;
    if (c->shape == LINE)
        return scan_decimal(&text, &c->slope) && c->slope >= 0 && strcmp(text, "/s") == 0;
    return scan_number(&text, &c->top) && *text++ == '/' && scan_decimal(&text, &c->period) && c->period > 0 &&
           strcmp(text, "s") == 0;
}

bool take_curve(struct line *l, struct curve *c)
{
    const char *word = take(l);
    return scan_curve(word, c) || report(l, "invalid value \"%s\"", word);
}

/* A GPU selector is an index, * for all GPUs or, if allowed, - for calls without a GPU. */
bool take_gpus(struct line *l, bool or_none, gpu_set *out)
{
    const char *word = take(l), *end = word;
    int64_t index;
    if (strcmp(word, "*") == 0) {
        *out = l->all;
        return true;
    }
    if (or_none && strcmp(word, "-") == 0) {
        *out = (gpu_set)1 << NO_GPU;
        return true;
    }
    if (!scan_number(&end, &index) || *end || index < 0 || index >= MAX_GPUS)
        return report(l, "invalid GPU selector \"%s\"", word);
    *out = (gpu_set)1 << index;
    return true;
}

/* The capacity doubles, so the list is full at powers of two. */
void *append(void **items, size_t *count, size_t size)
{
    if ((*count & (*count - 1)) == 0) {
        void *grown = realloc(*items, (*count ? *count * 2 : 1) * size);
        if (!grown)
            abort();
        *items = grown;
    }
    return (char *)*items + (*count)++ * size;
}

static bool take_pair(struct line *l, const struct pair *p)
{
    int64_t number;
    if (p->curve)
        return take_curve(l, p->curve);
    if (!p->number) {
        snprintf(p->text, p->size, "%s", take(l));
        return true;
    }
    if (!take_number(l, p->word, 0, INT64_MAX, &number))
        return false;
    *p->number = (unsigned long long)number;
    return true;
}

bool take_pairs(struct line *l, const struct pair *pairs, size_t count)
{
    for (const char *word = take(l); *word; word = take(l)) {
        size_t i = 0;
        while (i < count && strcmp(word, pairs[i].word) != 0)
            i++;
        if (i == count)
            return report(l, "unknown word \"%s\"", word);
        if (!take_pair(l, &pairs[i]))
            return false;
    }
    return true;
}

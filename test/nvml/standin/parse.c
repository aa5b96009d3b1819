#include "parse.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "names.h"

/* The line that is being read. Its words are taken from the front. */
struct line {
    const char *path;
    int number;
    char *rest;
};

static const char blanks[] = " \t\r";

__attribute__((format(printf, 2, 3))) static bool complain(const struct line *l, const char *format, ...)
{
    char problem[256];
    va_list args;
    va_start(args, format);
    vsnprintf(problem, sizeof problem, format, args);
    va_end(args);
    fprintf(stderr, "nvml stand-in: %s:%d: %s: the scenario before stands\n", l->path, l->number, problem);
    return false;
}

/* Takes the next word; "" at the end of the line. */
static char *take(struct line *l)
{
    char *word = l->rest + strspn(l->rest, blanks);
    char *end = word + strcspn(word, blanks);
    l->rest = *end ? end + 1 : end;
    *end = '\0';
    return word;
}

/* Takes all that is left, blanks inside included. */
static char *take_rest(struct line *l)
{
    char *text = l->rest + strspn(l->rest, blanks);
    char *end = text + strlen(text);
    while (end > text && strchr(blanks, end[-1]))
        end--;
    *end = '\0';
    l->rest = end;
    return text;
}

/* Reads a whole number, in decimal or as 0x…, of 64 bits with or without a sign, and moves on behind it. */
static bool scan_number(const char **text, int64_t *out)
{
    char *end;
    *out = **text == '-' ? (int64_t)strtoll(*text, &end, 0) : (int64_t)strtoull(*text, &end, 0);
    bool read = end != *text;
    *text = end;
    return read;
}

static bool scan_decimal(const char **text, double *out)
{
    char *end;
    *out = strtod(*text, &end);
    bool read = end != *text;
    *text = end;
    return read;
}

static bool take_number(struct line *l, const char *what, int64_t min, int64_t max, int64_t *out)
{
    const char *word = take(l), *end = word;
    if (!scan_number(&end, out) || *end || *out < min || *out > max)
        return complain(l, "%s is \"%s\", not a number from %lld to %lld", what, word, (long long)min, (long long)max);
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

static bool take_curve(struct line *l, struct curve *c)
{
    const char *word = take(l);
    return scan_curve(word, c) || complain(l, "\"%s\" is no value", word);
}

/* A GPU selector is an index, * for all of them or, where allowed, - for calls that concern none. */
static bool take_gpus(struct line *l, bool or_none, gpu_set *out)
{
    const char *word = take(l), *end = word;
    int64_t index;
    if (strcmp(word, "*") == 0) {
        *out = ((gpu_set)1 << MAX_GPUS) - 1;
        return true;
    }
    if (or_none && strcmp(word, "-") == 0) {
        *out = (gpu_set)1 << NO_GPU;
        return true;
    }
    if (!scan_number(&end, &index) || *end || index < 0 || index >= MAX_GPUS)
        return complain(l, "\"%s\" selects no GPU", word);
    *out = (gpu_set)1 << index;
    return true;
}

/* Makes room for one more item and returns where it goes. Room doubles, so that it is full at powers of two. */
static void *append(void **items, size_t *count, size_t size)
{
    if ((*count & (*count - 1)) == 0) {
        void *grown = realloc(*items, (*count ? *count * 2 : 1) * size);
        if (!grown)
            abort();
        *items = grown;
    }
    return (char *)*items + (*count)++ * size;
}

#define APPEND(list, ...) \
    (*(__typeof__((list)->items))append((void **)&(list)->items, &(list)->count, sizeof *(list)->items) = (__VA_ARGS__))

static bool parse_gpu_count(struct scenario *s, struct line *l)
{
    int64_t count;
    if (!take_number(l, "the count of GPUs", 0, MAX_GPUS, &count))
        return false;
    s->gpu_count = (unsigned int)count;
    return true;
}

static bool parse_driver(struct scenario *s, struct line *l)
{
    snprintf(s->driver, sizeof s->driver, "%s", take(l));
    return s->driver[0] || complain(l, "the driver has no version");
}

static bool parse_epoch(struct scenario *s, struct line *l)
{
    const char *word = take(l), *end = word;
    if (!scan_decimal(&end, &s->epoch) || *end)
        return complain(l, "\"%s\" is no Unix time in seconds", word);
    return true;
}

static bool parse_lock(struct scenario *s, struct line *l)
{
    const char *word = take(l);
    s->driver_lock = strcmp(word, "driver") == 0;
    return s->driver_lock || complain(l, "\"%s\" cannot be locked, only the driver can", word);
}

static const struct {
    const char *name;
    nvmlValueType_t type;
} types[] = {
    {"f64", NVML_VALUE_TYPE_DOUBLE},
    {"u16", NVML_VALUE_TYPE_UNSIGNED_SHORT},
    {"u32", NVML_VALUE_TYPE_UNSIGNED_INT},
    {"u64", NVML_VALUE_TYPE_UNSIGNED_LONG_LONG},
    {"ulong", NVML_VALUE_TYPE_UNSIGNED_LONG},
    {"i32", NVML_VALUE_TYPE_SIGNED_INT},
    {"i64", NVML_VALUE_TYPE_SIGNED_LONG_LONG},
};

static bool take_type(struct line *l, nvmlValueType_t *out)
{
    const char *word = take(l);
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        if (strcmp(word, types[i].name) == 0) {
            *out = types[i].type;
            return true;
        }
    }
    *out = NVML_VALUE_TYPE_UNSIGNED_LONG_LONG;
    return *word == '\0' || complain(l, "\"%s\" is no value type", word);
}

/* gpu <sel> field <id>[/<scope>] <value> [<type>] */
static bool parse_field(struct scenario *s, gpu_set gpus, struct line *l)
{
    const char *word = take(l), *end = word;
    int64_t id, scope = 0;
    bool any_scope = true, read = scan_number(&end, &id);
    if (read && *end == '/') {
        end++;
        any_scope = false;
        read = scan_number(&end, &scope);
    }
    if (!read || *end)
        return complain(l, "\"%s\" is no field", word);
    struct field f = {.gpus = gpus, .id = (unsigned int)id, .scope = (unsigned int)scope, .any_scope = any_scope};
    if (!take_curve(l, &f.curve) || !take_type(l, &f.type))
        return false;
    APPEND(&s->fields, f);
    return true;
}

/* A number or a text that a line names: "gi 3". */
struct pair {
    const char *word;
    unsigned long long *number; /* NULL: it is a text */
    char *text;
    size_t size;
};

/* Takes pairs, in any order, until the line ends. */
static bool take_pairs(struct line *l, const struct pair *pairs, size_t count)
{
    for (const char *word = take(l); *word; word = take(l)) {
        size_t i = 0;
        while (i < count && strcmp(word, pairs[i].word) != 0)
            i++;
        int64_t number;
        if (i == count)
            return complain(l, "unknown word \"%s\"", word);
        if (!pairs[i].number) {
            snprintf(pairs[i].text, pairs[i].size, "%s", take(l));
            continue;
        }
        if (!take_number(l, word, 0, INT64_MAX, &number))
            return false;
        *pairs[i].number = (unsigned long long)number;
    }
    return true;
}

enum { UNSET_ID = 0xFFFFFFFF }; /* what the header gives for the ids of an instance that is none */

/* gpu <sel> process <pid> <bytes> [gi <g>] [ci <c>] */
static bool parse_process(struct scenario *s, gpu_set gpus, struct line *l)
{
    int64_t pid, bytes;
    unsigned long long gi = UNSET_ID, ci = UNSET_ID;
    const struct pair pairs[] = {{.word = "gi", .number = &gi}, {.word = "ci", .number = &ci}};
    if (!take_number(l, "the pid", 1, INT32_MAX, &pid) || !take_number(l, "the memory", 0, INT64_MAX, &bytes) ||
        !take_pairs(l, pairs, 2))
        return false;
    struct process p = {gpus, {(unsigned int)pid, (unsigned long long)bytes, (unsigned int)gi, (unsigned int)ci}};
    APPEND(&s->processes, p);
    return true;
}

/* Tells whether a text is a profile's name, as "1c.3g.40gb+me" is. */
static bool is_profile(const char *text)
{
    unsigned int c, g, gb;
    int end = 0;
    if (sscanf(text, "%uc.%ug.%ugb%n", &c, &g, &gb, &end) != 3 || !end) {
        end = 0;
        if (sscanf(text, "%ug.%ugb%n", &g, &gb, &end) != 2 || !end)
            return false;
    }
    return text[end] == '\0' || text[end] == '+' || text[end] == '-';
}

/* gpu <sel> slice <index> <profile> gi <g> ci <c> [uuid <text>|old] [memory <bytes>] [used <bytes>] */
static bool parse_slice(struct scenario *s, gpu_set gpus, struct line *l)
{
    int64_t index;
    if (!take_number(l, "the slice's index", 0, MAX_SLICES - 1, &index))
        return false;
    const char *profile = take(l);
    if (!is_profile(profile))
        return complain(l, "\"%s\" is no MIG profile", profile);
    struct slice slice = {.present = true};
    snprintf(slice.profile, sizeof slice.profile, "%s", profile);
    unsigned long long gi = UNSET_ID, ci = UNSET_ID;
    const struct pair pairs[] = {
        {.word = "gi", .number = &gi},
        {.word = "ci", .number = &ci},
        {.word = "uuid", .text = slice.uuid, .size = sizeof slice.uuid},
        {.word = "memory", .number = &slice.memory},
        {.word = "used", .number = &slice.used},
    };
    if (!take_pairs(l, pairs, sizeof pairs / sizeof *pairs))
        return false;
    if (gi == UNSET_ID || ci == UNSET_ID)
        return complain(l, "a slice needs its gi and its ci");
    slice.gi = (unsigned int)gi;
    slice.ci = (unsigned int)ci;
    for (int i = 0; i < MAX_GPUS; i++) {
        if (gpus & (gpu_set)1 << i)
            s->gpus[i].slices[index] = slice;
    }
    return true;
}

/* gpu <sel> link <first>[-<last>] switch | off | none | gpu <i> */
static bool parse_link(struct scenario *s, gpu_set gpus, struct line *l)
{
    const char *word = take(l), *end = word;
    int64_t first, last, gpu = 0;
    bool read = scan_number(&end, &first);
    last = first;
    if (read && *end == '-') {
        end++;
        read = scan_number(&end, &last);
    }
    if (!read || *end || first < 0 || last < first || last >= NVML_NVLINK_MAX_LINKS)
        return complain(l, "\"%s\" is no link", word);
    static const char *const kinds[] = {"none", "off", "switch", "gpu"};
    const char *kind = take(l);
    struct link link = {.kind = NO_LINK};
    while (link.kind <= LINK_TO_GPU && strcmp(kind, kinds[link.kind]) != 0)
        link.kind++;
    if (link.kind > LINK_TO_GPU)
        return complain(l, "a link does not lead to \"%s\"", kind);
    if (link.kind == LINK_TO_GPU && !take_number(l, "the GPU at its end", 0, MAX_GPUS - 1, &gpu))
        return false;
    link.gpu = (int)gpu;
    for (int i = 0; i < MAX_GPUS; i++) {
        for (int64_t n = first; gpus & (gpu_set)1 << i && n <= last; n++)
            s->gpus[i].links[n] = link;
    }
    return true;
}

/* ancestor <sel> <sel> <level> */
static bool parse_ancestor(struct scenario *s, struct line *l)
{
    static const struct {
        const char *name;
        nvmlGpuTopologyLevel_t level;
    } levels[] = {
        {"internal", NVML_TOPOLOGY_INTERNAL}, {"single", NVML_TOPOLOGY_SINGLE}, {"multiple", NVML_TOPOLOGY_MULTIPLE},
        {"hostbridge", NVML_TOPOLOGY_HOSTBRIDGE}, {"node", NVML_TOPOLOGY_NODE}, {"system", NVML_TOPOLOGY_SYSTEM},
    };
    gpu_set one, other;
    if (!take_gpus(l, false, &one) || !take_gpus(l, false, &other))
        return false;
    const char *word = take(l);
    size_t at = 0, count = sizeof levels / sizeof *levels;
    while (at < count && strcmp(word, levels[at].name) != 0)
        at++;
    if (at == count)
        return complain(l, "\"%s\" is nothing that two GPUs have in common", word);
    for (int i = 0; i < MAX_GPUS; i++) {
        for (int j = 0; j < MAX_GPUS; j++) {
            if (one & (gpu_set)1 << i && other & (gpu_set)1 << j)
                s->gpus[i].ancestors[j] = s->gpus[j].ancestors[i] = levels[at].level;
        }
    }
    return true;
}

static bool parse_reuse(struct scenario *s, struct line *l)
{
    const char *word = take(l);
    s->reuse_handles = strcmp(word, "handles") == 0;
    return s->reuse_handles || complain(l, "\"%s\" cannot be reused, only handles can", word);
}

static int named(const char *const *names, int count, const char *name)
{
    for (int i = 0; i < count; i++) {
        if (strcmp(names[i], name) == 0)
            return i;
    }
    return -1;
}

static bool set_value(struct scenario *s, gpu_set gpus, int value, struct line *l)
{
    struct curve c;
    if (!take_curve(l, &c))
        return false;
    for (int i = 0; i < MAX_GPUS; i++) {
        if (gpus & (gpu_set)1 << i)
            s->gpus[i].values[value] = c;
    }
    return true;
}

static bool set_text(struct scenario *s, gpu_set gpus, int text, struct line *l)
{
    const char *rest = take_rest(l);
    unsigned int part;
    if (!*rest || (text == text_pci && sscanf(rest, "%x:%x:%x.%x", &part, &part, &part, &part) != 4))
        return complain(l, "\"%s\" cannot be a GPU's text here", rest);
    for (int i = 0; i < MAX_GPUS; i++) {
        if (gpus & (gpu_set)1 << i)
            snprintf(s->gpus[i].texts[text], sizeof s->gpus[i].texts[text], "%s", rest);
    }
    return true;
}

static bool lose(struct scenario *s, gpu_set gpus)
{
    for (int i = 0; i < MAX_GPUS; i++)
        s->gpus[i].lost |= (gpus & (gpu_set)1 << i) != 0;
    return true;
}

#define X(name) #name,
static const char *const value_names[VALUE_COUNT] = {GPU_VALUES(X)};
static const char *const text_names[TEXT_COUNT] = {GPU_TEXTS(X)};
#undef X

static bool parse_gpu(struct scenario *s, struct line *l)
{
    gpu_set gpus;
    if (!take_gpus(l, false, &gpus))
        return false;
    const char *key = take(l);
    if (strcmp(key, "lost") == 0)
        return lose(s, gpus);
    if (strcmp(key, "field") == 0)
        return parse_field(s, gpus, l);
    if (strcmp(key, "process") == 0)
        return parse_process(s, gpus, l);
    if (strcmp(key, "slice") == 0)
        return parse_slice(s, gpus, l);
    if (strcmp(key, "link") == 0)
        return parse_link(s, gpus, l);
    int i = named(value_names, VALUE_COUNT, key);
    if (i >= 0)
        return set_value(s, gpus, i, l);
    i = named(text_names, TEXT_COUNT, key);
    if (i >= 0)
        return set_text(s, gpus, i, l);
    return complain(l, "a GPU has no \"%s\"", key);
}

/* event <serial> gpu <i> xid <n> | type <mask> data <n> [gi <g>] [ci <c>] */
static bool parse_event(struct scenario *s, struct line *l)
{
    int64_t serial;
    unsigned long long gpu = NO_GPU, xid = 0, type = 0, data = 0, gi = UNSET_ID, ci = UNSET_ID;
    const struct pair pairs[] = {
        {.word = "gpu", .number = &gpu},   {.word = "xid", .number = &xid}, {.word = "type", .number = &type},
        {.word = "data", .number = &data}, {.word = "gi", .number = &gi},   {.word = "ci", .number = &ci},
    };
    if (!take_number(l, "the serial", 1, INT64_MAX, &serial) || !take_pairs(l, pairs, sizeof pairs / sizeof *pairs))
        return false;
    if (xid) {
        type = nvmlEventTypeXidCriticalError;
        data = xid;
    }
    if (gpu >= MAX_GPUS || !type)
        return complain(l, "an event needs a GPU and an xid or a type");
    struct event e = {(unsigned long long)serial, (unsigned int)gpu, type, data, (unsigned int)gi, (unsigned int)ci};
    APPEND(&s->events, e);
    return true;
}

/* Takes "<function|*>", and where a field may fail "field:<id>" too, and then "gpu <sel>". */
static bool take_target(struct line *l, struct rule *r)
{
    static const char field[] = "field:";
    const char *word = take(l), *end = word + strlen(field);
    int64_t id;
    if (r->obstacle == FAIL && strncmp(word, field, strlen(field)) == 0 && scan_number(&end, &id) && !*end) {
        r->obstacle = FAIL_FIELD;
        r->target = (int)id;
    } else {
        r->target = strcmp(word, "*") == 0 ? ANY_FUNCTION : function_named(word);
        if (r->target < 0 && strcmp(word, "*") != 0)
            return complain(l, "\"%s\" is no function of NVML", word);
    }
    if (strcmp(take(l), "gpu") != 0)
        return complain(l, "\"gpu <selector>\" is missing");
    return take_gpus(l, true, &r->gpus);
}

static bool parse_fail(struct scenario *s, struct line *l)
{
    struct rule r = {.obstacle = FAIL};
    if (!take_target(l, &r))
        return false;
    const char *word = take(l);
    if (!return_named(word, &r.answer))
        return complain(l, "\"%s\" is no return code", word);
    APPEND(&s->rules, r);
    return true;
}

static bool parse_slow(struct scenario *s, struct line *l)
{
    struct rule r = {.obstacle = SLOW};
    if (!take_target(l, &r))
        return false;
    const char *word = take(l), *end = word;
    int64_t ms;
    if (!scan_number(&end, &ms) || ms < 0 || strcmp(end, "ms") != 0)
        return complain(l, "\"%s\" is no time in ms", word);
    r.delay_ms = (long)ms;
    APPEND(&s->rules, r);
    return true;
}

static bool parse_hang(struct scenario *s, struct line *l)
{
    struct rule r = {.obstacle = HANG};
    if (!take_target(l, &r))
        return false;
    APPEND(&s->rules, r);
    return true;
}

static const struct {
    const char *word;
    bool (*parse)(struct scenario *, struct line *);
} directives[] = {
    {"gpus", parse_gpu_count}, {"driver", parse_driver}, {"epoch", parse_epoch}, {"lock", parse_lock},
    {"gpu", parse_gpu},        {"event", parse_event},   {"fail", parse_fail},   {"slow", parse_slow},
    {"hang", parse_hang},      {"reuse", parse_reuse},   {"ancestor", parse_ancestor},
};

static bool parse_line(struct scenario *s, struct line *l)
{
    l->rest[strcspn(l->rest, "#")] = '\0';
    const char *word = take(l);
    if (!*word)
        return true;
    for (size_t i = 0; i < sizeof directives / sizeof *directives; i++) {
        if (strcmp(word, directives[i].word) != 0)
            continue;
        if (!directives[i].parse(s, l))
            return false;
        word = take(l);
        return *word == '\0' || complain(l, "\"%s\" is one word too many", word);
    }
    return complain(l, "unknown directive \"%s\"", word);
}

bool parse_scenario(struct scenario *s, const char *path, char *text)
{
    struct line l = {.path = path, .number = 1};
    char *newline;
    for (l.rest = text; (newline = strchr(l.rest, '\n')); l.number++) {
        *newline = '\0';
        if (!parse_line(s, &l))
            return false;
        l.rest = newline + 1;
    }
    return (l.number > 1 && !*l.rest) || complain(&l, "the file does not end with a newline, so it is half-written");
}

/* Parser of the lines of a GPU. */

#include "parse_gpu.h"

#include <stdio.h>
#include <string.h>

#include "line.h"
#include "names.h"

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
    return *word == '\0' || report(l, "unknown value type \"%s\"", word);
}

/* Parses "<id>" or "<id>-<id>" with an optional scope after a slash: a number or, if or_link, "link". */
static bool scan_ids(const char *text, bool or_link, unsigned int ids[2], struct scope *scope)
{
    int64_t first, last, number;
    *scope = (struct scope){.kind = ANY_SCOPE};
    if (!scan_number(&text, &first))
        return false;
    last = first;
    if (*text == '-') {
        text++;
        if (!scan_number(&text, &last))
            return false;
    }
    ids[0] = (unsigned int)first;
    ids[1] = (unsigned int)last;
    if (or_link && strcmp(text, "/link") == 0) {
        scope->kind = EACH_LINK;
        return true;
    }
    if (*text == '/') {
        text++;
        if (!scan_number(&text, &number))
            return false;
        *scope = (struct scope){ONE_SCOPE, (unsigned int)number};
    }
    return *text == '\0' && first >= 0 && last >= first;
}

/* gpu <sel> field <id>[-<id>][/<scope>|/link] <value> [<type>] */
static bool parse_field(struct scenario *s, gpu_set gpus, struct line *l)
{
    const char *word = take(l);
    unsigned int ids[2];
    struct scope scope;
    if (!scan_ids(word, true, ids, &scope))
        return report(l, "invalid field \"%s\"", word);
    struct field f = {.gpus = gpus, .first = ids[0], .last = ids[1], .scope = scope};
    if (!take_curve(l, &f.curve) || !take_type(l, &f.type))
        return false;
    APPEND(&s->fields, f);
    return true;
}

/* gpu <sel> metric <id>[-<id>][/<gi>] <value> */
static bool parse_metric(struct scenario *s, gpu_set gpus, struct line *l)
{
    const char *word = take(l);
    unsigned int ids[2];
    struct scope scope;
    if (!scan_ids(word, false, ids, &scope) || ids[1] >= NVML_GPM_METRIC_MAX)
        return report(l, "invalid metric \"%s\"", word);
    struct metric m = {.gpus = gpus, .first = ids[0], .last = ids[1], .scope = scope};
    if (!take_curve(l, &m.curve))
        return false;
    APPEND(&s->metrics, m);
    return true;
}

/* gpu <sel> call <function>[/<part>] <value> */
static bool parse_result(struct scenario *s, gpu_set gpus, struct line *l)
{
    char name[64];
    snprintf(name, sizeof name, "%s", take(l));
    struct result r = {.gpus = gpus, .scope = {.kind = ANY_SCOPE}};
    char *slash = strchr(name, '/');
    if (slash) {
        const char *end = slash + 1;
        int64_t part;
        if (!scan_number(&end, &part) || *end)
            return report(l, "invalid part \"%s\"", slash + 1);
        r.scope = (struct scope){ONE_SCOPE, (unsigned int)part};
        *slash = '\0';
    }
    r.function = find_function(name);
    if (r.function < 0)
        return report(l, "unknown NVML function \"%s\"", name);
    if (!take_curve(l, &r.curve))
        return false;
    APPEND(&s->results, r);
    return true;
}

static int index_of(const char *const *names, int count, const char *name)
{
    for (int i = 0; i < count; i++) {
        if (strcmp(names[i], name) == 0)
            return i;
    }
    return -1;
}

/* Parses the kinds of a process: "graphics", "compute+graphics". */
static bool scan_kinds(char *text, unsigned int *kinds)
{
    static const char *const names[] = {"compute", "graphics", "mps"}; /* in the order of the bits */
    char *rest;
    *kinds = 0;
    for (char *name = strtok_r(text, "+", &rest); name; name = strtok_r(NULL, "+", &rest)) {
        int i = index_of(names, 3, name);
        if (i < 0)
            return false;
        *kinds |= 1u << i;
    }
    return *kinds != 0;
}

/* gpu <sel> process <pid> <bytes>|none [gi <g>] [ci <c>] [type <kinds>] [sm|mem|enc|dec <value>] */
static bool parse_process(struct scenario *s, gpu_set gpus, struct line *l)
{
    int64_t pid;
    unsigned long long gi = UNSET_ID, ci = UNSET_ID;
    char type[32] = "compute";
    struct process p = {.gpus = gpus};
    const struct pair pairs[] = {
        {.word = "gi", .number = &gi},
        {.word = "ci", .number = &ci},
        {.word = "type", .text = type, .size = sizeof type},
        {.word = "sm", .curve = &p.sm},
        {.word = "mem", .curve = &p.memory},
        {.word = "enc", .curve = &p.encoder},
        {.word = "dec", .curve = &p.decoder},
    };
    if (!take_number(l, "the pid", 0, UINT32_MAX, &pid) || !take_curve(l, &p.bytes) ||
        !take_pairs(l, pairs, sizeof pairs / sizeof *pairs))
        return false;
    if (!scan_kinds(type, &p.kinds))
        return report(l, "unknown process type \"%s\"", type);
    p.pid = (unsigned int)pid;
    p.gi = (unsigned int)gi;
    p.ci = (unsigned int)ci;
    APPEND(&s->processes, p);
    return true;
}

/* Reports whether a text is the name of a MIG profile, such as "1c.3g.40gb+me". */
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

/* gpu <sel> slice <index> <profile> gi <g> ci <c> [uuid <text>|old] [memory <bytes>] [used|bar1 <value>] */
static bool parse_mig_device(struct scenario *s, gpu_set gpus, struct line *l)
{
    int64_t index;
    if (!take_number(l, "the index of the MIG device", 0, MAX_MIG_DEVICES - 1, &index))
        return false;
    const char *profile = take(l);
    if (!is_profile(profile))
        return report(l, "invalid MIG profile \"%s\"", profile);
    struct mig_device mig = {.present = true};
    snprintf(mig.profile, sizeof mig.profile, "%s", profile);
    unsigned long long gi = UNSET_ID, ci = UNSET_ID;
    const struct pair pairs[] = {
        {.word = "gi", .number = &gi},
        {.word = "ci", .number = &ci},
        {.word = "uuid", .text = mig.uuid, .size = sizeof mig.uuid},
        {.word = "memory", .number = &mig.memory},
        {.word = "used", .curve = &mig.used},
        {.word = "bar1", .curve = &mig.bar1_used},
    };
    if (!take_pairs(l, pairs, sizeof pairs / sizeof *pairs))
        return false;
    if (gi == UNSET_ID || ci == UNSET_ID)
        return report(l, "MIG device lacks gi or ci");
    mig.gi = (unsigned int)gi;
    mig.ci = (unsigned int)ci;
    for (int i = 0; i < MAX_GPUS; i++) {
        if (gpus & (gpu_set)1 << i)
            s->gpus[i].mig_devices[index] = mig;
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
        return report(l, "invalid link \"%s\"", word);
    static const char *const kinds[] = {"none", "off", "switch", "gpu"};
    const char *kind = take(l);
    struct link link = {.kind = NO_LINK};
    while (link.kind <= LINK_TO_GPU && strcmp(kind, kinds[link.kind]) != 0)
        link.kind++;
    if (link.kind > LINK_TO_GPU)
        return report(l, "unknown link target \"%s\"", kind);
    if (link.kind == LINK_TO_GPU && !take_number(l, "the remote GPU", 0, MAX_GPUS - 1, &gpu))
        return false;
    link.gpu = (int)gpu;
    for (int i = 0; i < MAX_GPUS; i++) {
        for (int64_t n = first; gpus & (gpu_set)1 << i && n <= last; n++)
            s->gpus[i].links[n] = link;
    }
    return true;
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
        return report(l, "invalid text \"%s\"", rest);
    for (int i = 0; i < MAX_GPUS; i++) {
        if (gpus & (gpu_set)1 << i)
            snprintf(s->gpus[i].texts[text], sizeof s->gpus[i].texts[text], "%s", rest);
    }
    return true;
}

static bool parse_lost(struct scenario *s, gpu_set gpus, struct line *l)
{
    (void)l;
    for (int i = 0; i < MAX_GPUS; i++)
        s->gpus[i].lost |= (gpus & (gpu_set)1 << i) != 0;
    return true;
}

static bool parse_reset(struct scenario *s, gpu_set gpus, struct line *l)
{
    const char *word = take(l), *end = word;
    double at;
    if (!scan_decimal(&end, &at) || *end)
        return report(l, "invalid Unix time \"%s\"", word);
    for (int i = 0; i < MAX_GPUS; i++) {
        if (gpus & (gpu_set)1 << i)
            s->gpus[i].reset = at;
    }
    return true;
}

#define X(name) #name,
static const char *const value_names[VALUE_COUNT] = {GPU_VALUES(X)};
static const char *const text_names[TEXT_COUNT] = {GPU_TEXTS(X)};
#undef X

/* Parsers by key, except for the keys of values and texts. */
static const struct {
    const char *word;
    bool (*parse)(struct scenario *, gpu_set, struct line *);
} subjects[] = {
    {"model", parse_model},     {"field", parse_field}, {"metric", parse_metric},
    {"call", parse_result},
    {"process", parse_process}, {"slice", parse_mig_device}, {"link", parse_link},
    {"lost", parse_lost},       {"reset", parse_reset},
};

bool parse_gpu(struct scenario *s, struct line *l)
{
    gpu_set gpus;
    if (!take_gpus(l, false, &gpus))
        return false;
    const char *key = take(l);
    for (size_t i = 0; i < sizeof subjects / sizeof *subjects; i++) {
        if (strcmp(key, subjects[i].word) == 0)
            return subjects[i].parse(s, gpus, l);
    }
    int i = index_of(value_names, VALUE_COUNT, key);
    if (i >= 0)
        return set_value(s, gpus, i, l);
    i = index_of(text_names, TEXT_COUNT, key);
    if (i >= 0)
        return set_text(s, gpus, i, l);
    return report(l, "unknown key \"%s\"", key);
}

#include "parse.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "default.h"
#include "line.h"
#include "names.h"
#include "parse_gpu.h"

static bool parse_gpu_count(struct scenario *s, struct line *l)
{
    int64_t count;
    if (!take_number(l, "the number of GPUs", 0, MAX_GPUS, &count))
        return false;
    s->gpu_count = (unsigned int)count;
    return true;
}

static bool parse_driver(struct scenario *s, struct line *l)
{
    snprintf(s->driver, sizeof s->driver, "%s", take(l));
    return s->driver[0] || report(l, "missing driver version");
}

static bool parse_epoch(struct scenario *s, struct line *l)
{
    const char *word = take(l), *end = word;
    if (!scan_decimal(&end, &s->epoch) || *end)
        return report(l, "invalid Unix time \"%s\"", word);
    return true;
}

static bool parse_lock(struct scenario *s, struct line *l)
{
    const char *word = take(l);
    s->driver_lock = strcmp(word, "driver") == 0;
    return s->driver_lock || report(l, "invalid lock \"%s\", want driver", word);
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
        return report(l, "unknown topology level \"%s\"", word);
    for (int i = 0; i < MAX_GPUS; i++) {
        for (int j = 0; j < MAX_GPUS; j++) {
            if (one & (gpu_set)1 << i && other & (gpu_set)1 << j)
                s->gpus[i].ancestors[j] = s->gpus[j].ancestors[i] = levels[at].level;
        }
    }
    return true;
}

/* confidential on | off | devtools | unready | none */
static bool parse_confidential(struct scenario *s, struct line *l)
{
    static const char *const states[] = {"none", "off", "on", "devtools", "unready"};
    const char *word = take(l);
    for (int i = CC_NONE; i <= CC_UNREADY; i++) {
        if (strcmp(word, states[i]) == 0) {
            s->confidential = i;
            return true;
        }
    }
    return report(l, "unknown confidential computing state \"%s\"", word);
}

static bool parse_add(struct scenario *s, struct line *l)
{
    const char *word = take(l);
    s->add_fields = strcmp(word, "fields") == 0;
    return s->add_fields || report(l, "invalid add \"%s\", want fields", word);
}

static bool parse_reuse(struct scenario *s, struct line *l)
{
    const char *word = take(l);
    s->reuse_handles = strcmp(word, "handles") == 0;
    return s->reuse_handles || report(l, "invalid reuse \"%s\", want handles", word);
}

static bool parse_short(struct scenario *s, struct line *l)
{
    const char *word = take(l);
    s->short_processes = strcmp(word, "processes") == 0;
    return s->short_processes || report(l, "invalid short \"%s\", want processes", word);
}

/* Parses an event type: a name or a mask. */
static bool scan_event_type(const char *word, unsigned long long *out)
{
    static const struct {
        const char *name;
        unsigned long long type;
    } types[] = {
        {"single_bit_ecc", nvmlEventTypeSingleBitEccError},
        {"double_bit_ecc", nvmlEventTypeDoubleBitEccError},
        {"pstate", nvmlEventTypePState},
        {"xid", nvmlEventTypeXidCriticalError},
        {"clock", nvmlEventTypeClock},
        {"power_source", nvmlEventTypePowerSourceChange},
        {"mig_change", nvmlEventMigConfigChange},
        {"single_bit_ecc_storm", nvmlEventTypeSingleBitEccErrorStorm},
        {"dram_retirement", nvmlEventTypeDramRetirementEvent},
        {"dram_retirement_failure", nvmlEventTypeDramRetirementFailure},
        {"non_fatal_poison", nvmlEventTypeNonFatalPoisonError},
        {"fatal_poison", nvmlEventTypeFatalPoisonError},
        {"gpu_unavailable", nvmlEventTypeGpuUnavailableError},
        {"recovery_action", nvmlEventTypeGpuRecoveryAction},
    };
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        if (strcmp(word, types[i].name) == 0) {
            *out = types[i].type;
            return true;
        }
    }
    int64_t mask;
    if (!scan_number(&word, &mask) || *word || mask <= 0)
        return false;
    *out = (unsigned long long)mask;
    return true;
}

/* event <serial> gpu <i> xid <n> | type <name|mask> data <n> [gi <g>] [ci <c>] [x <times>] */
static bool parse_event(struct scenario *s, struct line *l)
{
    int64_t serial;
    char name[32] = "";
    unsigned long long gpu = NO_GPU, xid = 0, type = 0, data = 0, gi = UNSET_ID, ci = UNSET_ID, times = 1;
    const struct pair pairs[] = {
        {.word = "gpu", .number = &gpu},   {.word = "xid", .number = &xid}, {.word = "type", .text = name, .size = sizeof name},
        {.word = "data", .number = &data}, {.word = "gi", .number = &gi},   {.word = "ci", .number = &ci},
        {.word = "x", .number = &times},
    };
    if (!take_number(l, "the serial", 1, INT64_MAX, &serial) || !take_pairs(l, pairs, sizeof pairs / sizeof *pairs))
        return false;
    if (name[0] && !scan_event_type(name, &type))
        return report(l, "unknown event type \"%s\"", name);
    if (xid) {
        type = nvmlEventTypeXidCriticalError;
        data = xid;
    }
    if (gpu >= MAX_GPUS || !type)
        return report(l, "event lacks a GPU, or an xid or type");
    if (!times)
        return report(l, "event has x 0, want at least 1");
    struct event e = {(unsigned long long)serial, (unsigned long long)serial + times - 1, (unsigned int)gpu, type, data, (unsigned int)gi, (unsigned int)ci};
    APPEND(&s->events, e);
    return true;
}

/* Parses "field:<id>" or "metric:<id>". */
static bool scan_entry(const char *word, struct rule *r)
{
    static const struct {
        const char *prefix;
        enum action action;
    } entries[] = {{"field:", FAIL_FIELD}, {"metric:", FAIL_METRIC}};
    for (size_t i = 0; i < sizeof entries / sizeof *entries; i++) {
        const char *end = word + strlen(entries[i].prefix);
        int64_t id;
        if (strncmp(word, entries[i].prefix, strlen(entries[i].prefix)) != 0 || !scan_number(&end, &id) || *end)
            continue;
        r->action = entries[i].action;
        r->target = (int)id;
        return true;
    }
    return false;
}

/* Takes "<function|*>", for fail also "field:<id>" or "metric:<id>", and then "gpu <sel>". */
static bool take_target(struct line *l, struct rule *r)
{
    const char *word = take(l);
    if (r->action != FAIL || !scan_entry(word, r)) {
        r->target = strcmp(word, "*") == 0 ? ANY_FUNCTION : find_function(word);
        if (r->target < 0 && strcmp(word, "*") != 0)
            return report(l, "unknown NVML function \"%s\"", word);
    }
    if (strcmp(take(l), "gpu") != 0)
        return report(l, "missing \"gpu <selector>\"");
    return take_gpus(l, true, &r->gpus);
}

static bool parse_fail(struct scenario *s, struct line *l)
{
    struct rule r = {.action = FAIL};
    if (!take_target(l, &r))
        return false;
    const char *word = take(l);
    if (!parse_return(word, &r.ret))
        return report(l, "unknown return code \"%s\"", word);
    APPEND(&s->rules, r);
    return true;
}

static bool parse_slow(struct scenario *s, struct line *l)
{
    struct rule r = {.action = SLOW};
    if (!take_target(l, &r))
        return false;
    const char *word = take(l), *end = word;
    int64_t ms;
    if (!scan_number(&end, &ms) || ms < 0 || strcmp(end, "ms") != 0)
        return report(l, "invalid time in ms \"%s\"", word);
    r.delay_ms = (long)ms;
    APPEND(&s->rules, r);
    return true;
}

static bool parse_hang(struct scenario *s, struct line *l)
{
    struct rule r = {.action = HANG};
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
    {"hang", parse_hang},      {"reuse", parse_reuse},   {"add", parse_add},
    {"short", parse_short},
    {"ancestor", parse_ancestor},
    {"confidential", parse_confidential},
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
        return *word == '\0' || report(l, "unexpected word \"%s\"", word);
    }
    return report(l, "unknown directive \"%s\"", word);
}

static bool parse_text(struct scenario *s, const char *path, char *text, gpu_set all)
{
    struct line l = {.path = path, .number = 1, .all = all};
    char *newline;
    for (l.rest = text; (newline = strchr(l.rest, '\n')); l.number++) {
        *newline = '\0';
        if (!parse_line(s, &l))
            return false;
        l.rest = newline + 1;
    }
    return (l.number > 1 && !*l.rest) || report(&l, "incomplete file: missing final newline");
}

bool parse_scenario(struct scenario *s, const char *path, char *text)
{
    return parse_text(s, path, text, ALL_GPUS);
}

static const struct {
    const char *name, *text;
} models[] = {
#define X(name, text) {name, text},
    MODELS(X)
#undef X
};

/* Removes the settings of the GPUs, except identity, processes, MIG devices and `lost`. */
static void clear_settings(struct scenario *s, gpu_set gpus)
{
    for (int i = 0; i < MAX_GPUS; i++) {
        if (!(gpus & (gpu_set)1 << i))
            continue;
        struct curve minor = s->gpus[i].values[value_minor];
        memset(s->gpus[i].values, 0, sizeof s->gpus[i].values); /* absent */
        memset(s->gpus[i].links, 0, sizeof s->gpus[i].links);
        s->gpus[i].values[value_minor] = minor;
        s->gpus[i].texts[text_chassis_serial][0] = '\0';
    }
    for (size_t i = 0; i < s->fields.count; i++)
        s->fields.items[i].gpus &= ~gpus;
    for (size_t i = 0; i < s->metrics.count; i++)
        s->metrics.items[i].gpus &= ~gpus;
    for (size_t i = 0; i < s->results.count; i++)
        s->results.items[i].gpus &= ~gpus;
}

bool parse_model(struct scenario *s, gpu_set gpus, struct line *l)
{
    const char *word = take(l);
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        if (strcmp(word, models[i].name) != 0)
            continue;
        char *text = strdup(models[i].text);
        if (!text)
            abort();
        clear_settings(s, gpus);
        bool read = parse_text(s, word, text, gpus);
        free(text);
        return read;
    }
    return report(l, "unknown GPU model \"%s\"", word);
}

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

/* confidential on | off | devtools | none */
static bool parse_confidential(struct scenario *s, struct line *l)
{
    static const char *const states[] = {"none", "off", "on", "devtools"};
    const char *word = take(l);
    for (int i = CC_NONE; i <= CC_DEVTOOLS; i++) {
        if (strcmp(word, states[i]) == 0) {
            s->confidential = i;
            return true;
        }
    }
    return complain(l, "confidential computing cannot be \"%s\"", word);
}

static bool parse_add(struct scenario *s, struct line *l)
{
    const char *word = take(l);
    s->add_fields = strcmp(word, "fields") == 0;
    return s->add_fields || complain(l, "\"%s\" cannot be added, only fields can", word);
}

static bool parse_reuse(struct scenario *s, struct line *l)
{
    const char *word = take(l);
    s->reuse_handles = strcmp(word, "handles") == 0;
    return s->reuse_handles || complain(l, "\"%s\" cannot be reused, only handles can", word);
}

/* Reads the type of an event, a name or a mask. */
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
        return complain(l, "\"%s\" is no type of event", name);
    if (xid) {
        type = nvmlEventTypeXidCriticalError;
        data = xid;
    }
    if (gpu >= MAX_GPUS || !type)
        return complain(l, "an event needs a GPU and an xid or a type");
    if (!times)
        return complain(l, "an event happens once at least");
    struct event e = {(unsigned long long)serial, (unsigned long long)serial + times - 1, (unsigned int)gpu, type, data, (unsigned int)gi, (unsigned int)ci};
    APPEND(&s->events, e);
    return true;
}

/* Reads the id of a field or a metric that is to fail. */
static bool scan_entry(const char *word, struct rule *r)
{
    static const struct {
        const char *prefix;
        enum obstacle obstacle;
    } entries[] = {{"field:", FAIL_FIELD}, {"metric:", FAIL_METRIC}};
    for (size_t i = 0; i < sizeof entries / sizeof *entries; i++) {
        const char *end = word + strlen(entries[i].prefix);
        int64_t id;
        if (strncmp(word, entries[i].prefix, strlen(entries[i].prefix)) != 0 || !scan_number(&end, &id) || *end)
            continue;
        r->obstacle = entries[i].obstacle;
        r->target = (int)id;
        return true;
    }
    return false;
}

/* Takes "<function|*>", and what one entry of a call may fail by "field:<id>" or "metric:<id>" too, and then "gpu <sel>". */
static bool take_target(struct line *l, struct rule *r)
{
    const char *word = take(l);
    if (r->obstacle != FAIL || !scan_entry(word, r)) {
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
    {"hang", parse_hang},      {"reuse", parse_reuse},   {"add", parse_add},
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
        return *word == '\0' || complain(l, "\"%s\" is one word too many", word);
    }
    return complain(l, "unknown directive \"%s\"", word);
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
    return (l.number > 1 && !*l.rest) || complain(&l, "the file does not end with a newline, so it is half-written");
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

/* Forgets what was said of the GPUs, but for what is theirs alone and what goes on with them. */
static void forget(struct scenario *s, gpu_set gpus)
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
        forget(s, gpus);
        bool read = parse_text(s, word, text, gpus);
        free(text);
        return read;
    }
    return complain(l, "\"%s\" is no model of a GPU", word);
}

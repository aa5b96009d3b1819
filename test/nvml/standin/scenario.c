#include "scenario.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "default.h"
#include "gpm.h"
#include "parse.h"

/* Identifies a version of the file. */
struct file_version {
    struct timespec written;
    off_t size;
    ino_t inode;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards the next three variables and all references */
static struct scenario *current;
static struct file_version current_version;
static bool loaded;

/* The real-time clock at the load of the library, continued by the monotonic clock. */
static double loaded_unix, loaded_monotonic;

static double clock_seconds(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

__attribute__((constructor)) static void start_clock(void)
{
    loaded_unix = clock_seconds(CLOCK_REALTIME);
    loaded_monotonic = clock_seconds(CLOCK_MONOTONIC);
}

double unix_seconds(void)
{
    return loaded_unix + clock_seconds(CLOCK_MONOTONIC) - loaded_monotonic;
}

static void release_locked(struct scenario *s)
{
    if (!s || --s->references > 0)
        return;
    free(s->rules.items);
    free(s->fields.items);
    free(s->metrics.items);
    free(s->results.items);
    free(s->processes.items);
    free(s->events.items);
    free(s);
}

/* Sets the default identity of each GPU. */
static void identify(struct scenario *s)
{
    for (int i = 0; i < MAX_GPUS; i++) {
        struct gpu *gpu = &s->gpus[i];
        size_t size = sizeof gpu->texts[0];
        snprintf(gpu->texts[text_uuid], size, "GPU-00000000-0000-4000-8000-%012d", i);
        snprintf(gpu->texts[text_pci], size, "0000:%02x:00.0", 0x10 + i);
        snprintf(gpu->texts[text_serial], size, "16500000%05d", i);
        gpu->values[value_minor] = (struct curve){.shape = CONSTANT, .base = i};
        for (int j = 0; j < MAX_GPUS; j++) /* four GPUs per socket */
            gpu->ancestors[j] = i / 4 == j / 4 ? NVML_TOPOLOGY_NODE : NVML_TOPOLOGY_SYSTEM;
    }
}

static struct scenario *parse(const char *path, char *text)
{
    struct scenario *s = calloc(1, sizeof *s);
    if (!s)
        return NULL;
    s->references = 1;
    s->epoch = loaded_unix;
    s->since = unix_seconds();
    identify(s);
    char defaults[] = DEFAULT_SCENARIO;
    if (parse_scenario(s, "default.scenario", defaults) && parse_scenario(s, path, text))
        return s;
    release_locked(s);
    return NULL;
}

/* Reads the rest of a file as one string, which the caller frees. */
static char *read_text(int fd, size_t size)
{
    char *text = malloc(size + 1);
    size_t length = 0;
    while (text && length < size) {
        ssize_t n = read(fd, text + length, size - length);
        if (n == 0)
            break;
        if (n < 0) {
            free(text);
            return NULL;
        }
        length += (size_t)n;
    }
    if (text)
        text[length] = '\0';
    return text;
}

/* Reads the file again. An invalid file is reported once, and the previous scenario is kept. */
static void reload(const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat st;
    if (fd < 0)
        return;
    if (fstat(fd, &st) == 0) {
        char *text = read_text(fd, (size_t)st.st_size);
        struct scenario *fresh = text ? parse(path, text) : NULL;
        if (fresh) {
            if (current)
                gpm_advance(current, fresh);
            release_locked(current);
            current = fresh;
        }
        free(text);
        current_version = (struct file_version){st.st_mtim, st.st_size, st.st_ino};
        loaded = true;
    }
    close(fd);
}

static bool unchanged(const struct stat *st)
{
    return loaded && st->st_mtim.tv_sec == current_version.written.tv_sec &&
           st->st_mtim.tv_nsec == current_version.written.tv_nsec && st->st_size == current_version.size &&
           st->st_ino == current_version.inode;
}

static const char *scenario_path(void)
{
    return getenv("NVML_STANDIN");
}

bool scenario_present(void)
{
    const char *path = scenario_path();
    return path && access(path, R_OK) == 0;
}

const struct scenario *scenario_now(void)
{
    const char *path = scenario_path();
    struct stat st;
    pthread_mutex_lock(&lock);
    if (path && stat(path, &st) == 0 && !unchanged(&st))
        reload(path);
    if (current)
        current->references++;
    const struct scenario *s = current;
    pthread_mutex_unlock(&lock);
    return s;
}

int scenario_changes(void)
{
    const char *path = scenario_path(), *slash = path ? strrchr(path, '/') : NULL;
    if (!slash)
        return -1;
    char *dir = strndup(path, slash == path ? 1 : (size_t)(slash - path));
    int changes = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
    if (dir && changes >= 0)
        inotify_add_watch(changes, dir, IN_MOVED_TO | IN_CLOSE_WRITE);
    free(dir);
    return changes;
}

void scenario_wait(int changes, double seconds)
{
    char events[4096];
    struct pollfd wait = {.fd = changes, .events = POLLIN};
    int ms = (int)(seconds * 1e3) + (seconds > 0);
    if (changes < 0 && ms > 1) /* without inotify the caller polls each millisecond */
        ms = 1;
    if (poll(&wait, 1, ms) > 0)
        while (read(changes, events, sizeof events) > 0) {
        }
}

void scenario_release(const struct scenario *s)
{
    pthread_mutex_lock(&lock);
    release_locked((struct scenario *)s);
    pthread_mutex_unlock(&lock);
}

const struct rule *scenario_rule(const struct scenario *s, enum action action, int target, int gpu)
{
    for (size_t i = s->rules.count; i-- > 0;) {
        const struct rule *rule = &s->rules.items[i];
        if (rule->action == action && (rule->target == target || rule->target == ANY_FUNCTION) &&
            rule->gpus & (gpu_set)1 << gpu)
            return rule;
    }
    return NULL;
}

/* A wave rises from base to top in the first half of its period and falls back in the second. */
static int64_t wave(const struct curve *c, double seconds)
{
    double periods = seconds / c->period;
    double phase = 2 * (periods - (double)(int64_t)periods);
    double height = phase < 1 ? phase : 2 - phase;
    return c->base + (int64_t)(height * (double)(c->top - c->base));
}

/* A wave's integral from 0. The mean of each half period is halfway between base and top. */
static double wave_sum(const struct curve *c, double seconds)
{
    double half = c->period / 2, swing = (double)(c->top - c->base);
    int64_t halves = (int64_t)(seconds / half);
    double rest = seconds - (double)halves * half;
    double risen = swing * rest * rest / half / 2;
    return (double)c->base * seconds + swing * (double)halves * half / 2 + (halves % 2 == 0 ? risen : swing * rest - risen);
}

/* The integral between two times in seconds since the epoch. Full periods before `from` are left out: large sums would lose the
 * precision of a short interval. */
static double sum_between(const struct curve *c, double from, double to)
{
    switch (c->shape) {
    case LINE:
        return (to - from) * ((double)c->base + c->slope * (from + to) / 2);
    case WAVE: {
        double before = (double)(int64_t)(from / c->period) * c->period;
        return wave_sum(c, to - before) - wave_sum(c, from - before);
    }
    default:
        return (to - from) * (double)c->base;
    }
}

bool curve_sum(const struct scenario *s, const struct curve *c, double from, double to, double *out)
{
    double begin = from - s->epoch, end = to - s->epoch;
    *out = 0;
    if (c->shape == ABSENT)
        return false;
    if (begin < 0) { /* before the epoch the curve has its base value */
        *out = (double)c->base * ((end < 0 ? end : 0) - begin);
        begin = 0;
    }
    if (end > begin)
        *out += sum_between(c, begin, end);
    return true;
}

bool curve_at(const struct scenario *s, const struct curve *c, double at, int64_t *out)
{
    double seconds = at > s->epoch ? at - s->epoch : 0;
    switch (c->shape) {
    case ABSENT:
        return false;
    case CONSTANT:
        *out = c->base;
        return true;
    case LINE:
        *out = c->base + (int64_t)(c->slope * seconds);
        return true;
    case WAVE:
        *out = wave(c, seconds);
        return true;
    }
    return false;
}

#include "counter.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "names.h"
#include "scenario.h"

/* The file is an array of records. calls.go reads the file, so the layout is a contract. */
struct record {
    char name[64];
    _Atomic uint64_t per_gpu[MAX_GPUS + 1]; /* the last entry is for NO_GPU */
};

/* Three gauges precede the functions' counts. */
struct counts {
    struct record in_flight;
    struct record max_in_flight;
    struct record gpm_samples;
    struct record calls[FUNCTION_COUNT];
};

/* Without NVML_STANDIN_CALLS the counts are kept in memory only. */
static struct counts private_counts;
static struct counts *counts = &private_counts;

static void name_records(struct counts *c)
{
    strcpy(c->in_flight.name, "in flight");
    strcpy(c->max_in_flight.name, "most in flight");
    strcpy(c->gpm_samples.name, "gpm samples");
    for (int i = 0; i < FUNCTION_COUNT; i++)
        strncpy(c->calls[i].name, function_names[i], sizeof c->calls[i].name - 1);
}

/* Creates the file under a temporary name, so that readers see a complete file, and an earlier process does not change the new counts. */
static struct counts *map_counts(const char *path)
{
    char fresh[4096];
    snprintf(fresh, sizeof fresh, "%s.%d", path, (int)getpid());
    int fd = open(fresh, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (fd < 0)
        return NULL;
    struct counts *mapped = MAP_FAILED;
    if (ftruncate(fd, sizeof *mapped) == 0)
        mapped = mmap(NULL, sizeof *mapped, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (mapped != MAP_FAILED) {
        name_records(mapped);
        if (rename(fresh, path) == 0)
            return mapped;
    }
    unlink(fresh);
    return NULL;
}

__attribute__((constructor)) static void open_counts(void)
{
    const char *path = getenv("NVML_STANDIN_CALLS");
    if (!path)
        return;
    struct counts *mapped = map_counts(path);
    if (mapped)
        counts = mapped;
    else
        perror("nvml stand-in: map call counts");
}

void counter_begin(int function, int gpu)
{
    atomic_fetch_add(&counts->calls[function].per_gpu[gpu], 1);
    uint64_t now = atomic_fetch_add(&counts->in_flight.per_gpu[gpu], 1) + 1;
    uint64_t most = atomic_load(&counts->max_in_flight.per_gpu[gpu]);
    while (most < now && !atomic_compare_exchange_weak(&counts->max_in_flight.per_gpu[gpu], &most, now)) {
    }
}

void counter_end(int gpu)
{
    atomic_fetch_sub(&counts->in_flight.per_gpu[gpu], 1);
}

void counter_samples(int delta)
{
    atomic_fetch_add(&counts->gpm_samples.per_gpu[NO_GPU], (uint64_t)(int64_t)delta);
}

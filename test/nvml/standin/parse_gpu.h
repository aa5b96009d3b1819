/* The lines about a GPU, and what a model of one says. */

#ifndef PARSE_GPU_H
#define PARSE_GPU_H

#include "line.h"

/* Takes what follows "gpu". */
bool parse_gpu(struct scenario *, struct line *);

/* Takes a model's name and makes GPUs to be of it. */
bool parse_model(struct scenario *, gpu_set, struct line *);

#endif

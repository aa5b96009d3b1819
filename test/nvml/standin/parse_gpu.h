/* Parser of the lines of a GPU and its model. */

#ifndef PARSE_GPU_H
#define PARSE_GPU_H

#include "line.h"

/* Parses the words after "gpu". */
bool parse_gpu(struct scenario *, struct line *);

/* Takes a model's name and sets the model of the GPUs. */
bool parse_model(struct scenario *, gpu_set, struct line *);

#endif

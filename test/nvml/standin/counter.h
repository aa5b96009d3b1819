/* Counts calls in a file that other processes can read at any time. */

#ifndef COUNTER_H
#define COUNTER_H

/* Counts the begin of a call on the GPU. */
void counter_begin(int function, int gpu);

/* Counts the end of a call on the GPU. */
void counter_end(int gpu);

/* Adds to the number of allocated GPM samples. */
void counter_samples(int delta);

#endif

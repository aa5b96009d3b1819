/* Counts calls, in a file that anyone may read at any time. */

#ifndef COUNTER_H
#define COUNTER_H

/* Counts a call that begins, and one more that is under way on the GPU. */
void counter_enter(int function, int gpu);

/* One less is under way. */
void counter_leave(int gpu);

/* So many more GPM samples are allocated, or fewer. */
void counter_samples(int more);

#endif

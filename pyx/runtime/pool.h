/* The one thread pool of gpt2fast: a parallel loop over a counted range, for every kernel. */
#ifndef GPT2FAST_POOL_H
#define GPT2FAST_POOL_H

#include <stdint.h>

#define GPT2FAST_MAX_THREADS 256

/* Work on the items begin..end-1; `thread` is in 0..num_threads-1 and no two running calls share it. */
typedef void (*gf_task)(void *context, int64_t begin, int64_t end, int thread);

/* Call `task` until every item of 0..count-1 is done, `grain` items at a time, on at most num_threads threads, the
   caller's own among them.  Returns when all are done.  From several threads at once, one call gets the pool and the
   others run alone on their own thread: slower, never waiting for each other. */
void gf_parallel_for(gf_task task, void *context, int64_t count, int64_t grain, int num_threads);

#endif

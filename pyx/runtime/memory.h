/* Large zeroed buffers for weights and caches. */
#ifndef GPT2FAST_MEMORY_H
#define GPT2FAST_MEMORY_H

#include <stddef.h>

/* `size` bytes of zeros, aligned to 2 MiB and on huge pages where the system has them; NULL where there is no memory.
   Pages are taken from the system when they are first touched. */
void *gf_allocate(size_t size);
void gf_free(void *data, size_t size);

#endif

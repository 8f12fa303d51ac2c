"""The CPU level of this process, chosen once at import, and the thread pool that every kernel shares."""
# Only this module links the C files of pyx/simd: the others reach them through what cpu.pxd declares, so that there is
# one table and one pool in the process.
import os

from gpt2fast._internal.arguments import whole_number
from gpt2fast.errors import CpuLevelError, OutOfMemoryError

cdef extern from "simd/rows.h":
    const gf_rows *gf_rows_for(const char *name, int *known)

cdef extern from "runtime/pool.h":
    void gf_parallel_for(gf_task task, void *context, int64_t count, int64_t grain, int num_threads) noexcept nogil

cdef extern from "runtime/memory.h":
    void *gf_allocate(size_t size) nogil
    void gf_free(void *data, size_t size) nogil

LEVELS = ("baseline", "x86-64-v3", "x86-64-v4", "x86-64-v4-vnni", "aarch64-dotprod")


cdef void parallel_for(gf_task task, void *context, int64_t count, int64_t grain, int num_threads) noexcept nogil:
    gf_parallel_for(task, context, count, grain, num_threads)


cdef int checked_threads(num_threads) except -1:
    """The number of threads for the kernels, which divide by it: at least 1, and no more than the pool has."""
    return min(whole_number("num_threads", num_threads, least=1), GPT2FAST_MAX_THREADS)


cdef size_t checked_size(size) except? 0:
    """A number of bytes that was computed in Python's integers, from the numbers of a file or a caller."""
    if not 0 <= size < 2**62:
        raise OutOfMemoryError(f"no memory for {size:,} bytes")
    return size


cdef void *allocate(size_t size) except NULL:
    cdef void *data = gf_allocate(size)
    if data == NULL:
        raise OutOfMemoryError(f"no memory for {size:,} bytes")
    return data


cdef void release(void *data, size_t size) noexcept:
    gf_free(data, size)


cdef const gf_rows *_choose() except NULL:
    cdef int known = 1
    cdef const gf_rows *chosen
    wanted = os.environ.get("GPT2FAST_CPU", "")
    if not wanted:
        return gf_rows_for(NULL, &known)
    chosen = gf_rows_for(wanted.encode(), &known)
    if chosen == NULL:
        problem = "is not supported by this processor" if known else "is not a level that gpt2fast knows"
        raise CpuLevelError(
            f"the environment variable GPT2FAST_CPU is {wanted!r}, which {problem}; expected one of "
            f"{', '.join(supported_levels())}, or unset it"
        )
    return chosen


def supported_levels():
    """The names of the CPU levels that this processor can run, slowest first."""
    cdef int known
    return tuple(name for name in LEVELS if gf_rows_for((<str>name).encode(), &known) != NULL)


def cpu_level():
    """The name of the CPU level in use: "baseline", "x86-64-v3", "x86-64-v4", "x86-64-v4-vnni" or "aarch64-dotprod"."""
    return rows.name.decode()


def use_level(str name):
    """Run all kernels of this process at another of `supported_levels` from now on: for tests, which compare levels.

    Nothing may be computed meanwhile.  Raises ValueError where this processor does not support the level.
    """
    global rows
    cdef int known
    cdef const gf_rows *chosen = gf_rows_for(name.encode(), &known)
    if chosen == NULL:
        raise ValueError(f"the CPU level is {name!r}; expected one of {', '.join(supported_levels())}")
    rows = chosen


rows = _choose()


cdef struct Squares:
    double *out

cdef void _square(void *context, int64_t begin, int64_t end, int thread) noexcept nogil:
    cdef int64_t i
    for i in range(begin, end):
        (<Squares *> context).out[i] += <double> i * i


def squares(int64_t count, int64_t grain, int num_threads):
    """The squares of 0..count-1 as a list, each added once by the thread pool: for tests of the pool alone."""
    from array import array
    cdef Squares context
    cdef double[::1] out
    if count <= 0:
        return []
    values = array("d", bytes(8 * count))
    out = values
    context.out = &out[0]
    with nogil:
        parallel_for(_square, &context, count, grain, num_threads)
    return list(values)

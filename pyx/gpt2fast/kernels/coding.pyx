"""Range coding of tokens by the frequencies that a row of logits gives them, and CRC-32C.

The coder is that of Schindler 1998 ("A fast renormalisation for arithmetic coding"), here with 64 bits and a carry that
goes into the bytes written before.  An interval [low, low + width) of 64-bit numbers is narrowed by each token to the
part that its frequency takes of the total: with unit = width // total, low += unit * below and width = unit *
frequency, where `below` is the sum of the frequencies of all lower ids.  While the width is under 2^56, the top byte of
low is written, and both are multiplied by 256.  What is left at the end is named by the fewest bytes; zeros are meant
after them.

The width is never under 2^56 and a total is under 2^32, so a unit has 24 bits or more: what rounding it down loses is
less than one part in 16 million.  docs/how/compression.md has all of the definition.
"""
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc

from gpt2fast.kernels.cpu cimport checked_threads, parallel_for, rows

import numpy as np

from gpt2fast.errors import InputError, OutOfMemoryError

cdef enum:
    # More logits than this, of which each has a frequency, leave too little of 32 bits.
    MOST = 1 << 24

cdef uint64_t TOP = <uint64_t> 1 << 56


cdef struct Interval:
    uint64_t below
    uint64_t frequency
    uint64_t total


cdef uint64_t _below(const uint32_t *frequencies, int64_t id) noexcept nogil:
    cdef uint64_t below = 0
    cdef int64_t i
    for i in range(id):
        below += frequencies[i]
    return below


cdef struct Rows:
    const float *logits
    int64_t ld
    int64_t n
    const int64_t *targets
    uint32_t *frequencies  # [threads][n]
    Interval *out


cdef void _intervals(void *context, int64_t begin, int64_t end, int thread) noexcept nogil:
    cdef Rows *job = <Rows *> context
    cdef uint32_t *frequencies = job.frequencies + thread * job.n
    cdef int64_t r
    for r in range(begin, end):
        job.out[r].total = rows.frequencies(job.logits + r * job.ld, job.n, frequencies)
        if job.out[r].total:
            job.out[r].below = _below(frequencies, job.targets[r])
            job.out[r].frequency = frequencies[job.targets[r]]


cdef int _check(int64_t n, int64_t row_stride, int64_t stride) except -1:
    if not 1 <= n <= MOST:
        raise InputError(f"there are {n} logits; expected 1 to {MOST}")
    if n > 1 and stride != sizeof(float) or row_stride % <int64_t> sizeof(float):
        raise ValueError("a row of logits is not contiguous")
    return 0


cdef class Encoder:
    """Tokens in, bytes out.

    >>> import numpy as np
    >>> logits = np.array([[0, 1, 2, 3]] * 5, np.float32)
    >>> encoder = Encoder()
    >>> encoder.encode(logits, np.array([3, 3, 2, 3, 0]))
    5
    >>> decoder = Decoder(encoder.finish())
    >>> [decoder.decode(row) for row in logits]
    [3, 3, 2, 3, 0]
    """
    cdef uint64_t low
    cdef uint64_t width
    cdef bytearray out

    def __init__(self):
        self.low, self.width, self.out = 0, ~<uint64_t> 0, bytearray()

    def __len__(self):
        """How many bytes have been written so far; those of the last tokens are still to come."""
        return len(self.out)

    def encode(self, const float[:, :] logits, const int64_t[::1] ids, *, num_threads=1):
        """Write `ids` (T,), each by its row of `logits` (T, n); the number of tokens written, which is less than T
        where the logits of the next one are not finite.

        Raises IndexError where an id is not among the logits.
        """
        cdef Rows job
        cdef int64_t T = logits.shape[0], n = logits.shape[1], r
        cdef int threads = checked_threads(num_threads)
        cdef Interval interval
        if ids.shape[0] != T:
            raise ValueError(f"there are {ids.shape[0]} ids for {T} rows of logits")
        if T == 0:
            return 0
        _check(n, logits.strides[0], logits.strides[1])
        for r in range(T):
            if not 0 <= ids[r] < n:
                raise IndexError(f"id {ids[r]} of row {r} is not among {n} logits")
        cdef uint32_t[::1] scratch = np.empty(threads * n, np.uint32)
        cdef uint64_t[:, ::1] out = np.zeros((T, 3), np.uint64)
        job.logits, job.ld, job.n = &logits[0, 0], logits.strides[0] // <int64_t> sizeof(float), n
        job.targets, job.frequencies, job.out = &ids[0], &scratch[0], <Interval *> &out[0, 0]
        with nogil:
            parallel_for(_intervals, &job, T, 1, threads)
        for r in range(T):
            interval = job.out[r]
            if interval.total == 0:
                return r
            self._write(interval)
        return T

    cdef int _write(self, Interval interval) except -1:
        cdef uint64_t unit = self.width // interval.total
        cdef uint64_t low = self.low + unit * interval.below
        if low < self.low:
            self._carry()
        self.low, self.width = low, unit * interval.frequency
        while self.width < TOP:
            self.out.append(<uint8_t> (self.low >> 56))
            self.low <<= 8
            self.width <<= 8
        return 0

    cdef int _carry(self) except -1:
        """Add one to the number that the bytes so far are; it is never all ones, as low + width is at most 1."""
        cdef int64_t i = len(self.out) - 1
        while self.out[i] == 255:
            self.out[i] = 0
            i -= 1
        self.out[i] += 1
        return 0

    def finish(self):
        """All bytes, of which a `Decoder` reads the tokens.  After this nothing more is written."""
        # The number of the interval with the most zeros at its end.
        cdef uint64_t mask = ~<uint64_t> 0, number = 0
        cdef int count
        for count in range(9):
            mask = ~<uint64_t> 0 >> 8 * count if count < 8 else 0
            number = (self.low + mask) & ~mask
            if number - self.low < self.width:
                break
        if number < self.low:
            self._carry()
        self.out += (<object> number).to_bytes(8, "big")[:count]
        return bytes(self.out).rstrip(b"\0")


cdef class Decoder:
    """The tokens of what an `Encoder` wrote, one after another."""
    cdef bytes data
    cdef int64_t place
    cdef uint64_t offset
    cdef uint64_t width
    cdef uint32_t *frequencies
    cdef int64_t size

    def __init__(self, bytes data not None):
        cdef int _i
        self.data, self.place, self.offset, self.width = data, 0, 0, ~<uint64_t> 0
        for _i in range(8):
            self.offset = self.offset << 8 | self._next()

    def __dealloc__(self):
        free(self.frequencies)

    cdef uint64_t _next(self) noexcept:
        cdef const uint8_t *bytes_of = self.data
        self.place += 1
        return bytes_of[self.place - 1] if self.place <= len(self.data) else 0

    def decode(self, const float[::1] logits):
        """The next id, by the row `logits` (n,) that it was written by; -1 where the logits are not finite, -2 where no
        encoder wrote these bytes."""
        cdef int64_t n = logits.shape[0], id = 0
        cdef uint64_t total, unit, wanted, below = 0, sum = 0
        _check(n, 0, sizeof(float))
        if self.size < n:
            free(self.frequencies)
            self.size = 0
            self.frequencies = <uint32_t *> malloc(n * sizeof(uint32_t))
            if self.frequencies == NULL:
                raise OutOfMemoryError(f"no memory for the frequencies of {n} tokens")
            self.size = n
        with nogil:
            total = rows.frequencies(&logits[0], n, self.frequencies)
            if total:
                unit = self.width // total
                wanted = self.offset // unit
                # By steps of 64 ids, which are quick to add up, and then one by one.
                while id + 64 <= n:
                    sum = _below(self.frequencies + id, 64)
                    if below + sum > wanted:
                        break
                    below += sum
                    id += 64
                while id < n and below + self.frequencies[id] <= wanted:
                    below += self.frequencies[id]
                    id += 1
        if total == 0:
            return -1
        if id == n:
            return -2
        self.offset -= unit * below
        self.width = unit * self.frequencies[id]
        while self.width < TOP:
            self.offset = self.offset << 8 | self._next()
            self.width <<= 8
        return id


cdef uint32_t[256] CRC


def _fill_table():
    cdef uint32_t value
    cdef int i, _bit
    for i in range(256):
        value = i
        for _bit in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        CRC[i] = value


_fill_table()


def crc32c(const uint8_t[::1] data, uint32_t before=0):
    """The CRC-32C (Castagnoli; RFC 3720, appendix B.4) of `data`, which comes after what has the CRC-32C `before`.

    >>> hex(crc32c(b"123456789")), crc32c(b"6789", crc32c(b"12345")) == crc32c(b"123456789")
    ('0xe3069283', True)
    """
    cdef uint32_t crc = ~before
    cdef int64_t i
    with nogil:
        for i in range(data.shape[0]):
            crc = CRC[(crc ^ data[i]) & 255] ^ crc >> 8
    return <uint32_t> ~crc

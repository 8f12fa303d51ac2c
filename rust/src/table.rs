//! Tables that are read at random: zeroed memory in large pages, where the system has them.
//!
//! Large, because random reads of some megabytes in pages of 4 KiB miss the processor's table of addresses.

use std::alloc::{alloc_zeroed, dealloc, handle_alloc_error, Layout};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

const LARGE_PAGE: usize = 2 << 20;

/// Types of which all bits zero is a value.
///
/// # Safety
/// That must be so, and they must need no drop.
pub unsafe trait Zeroed: Copy {}

// SAFETY: an integer.
unsafe impl Zeroed for u64 {}

/// A boxed slice of zeros; a large one begins at a large page.
pub struct Table<T: Zeroed> {
    /// What the allocator gave, with room to begin at the next large page.
    memory: NonNull<u8>,
    layout: Layout,
    start: NonNull<T>,
    len: usize,
}

// SAFETY: a table owns plain values.
unsafe impl<T: Zeroed + Send> Send for Table<T> {}
// SAFETY: as above.
unsafe impl<T: Zeroed + Sync> Sync for Table<T> {}

impl<T: Zeroed> Table<T> {
    /// A table of `len` zeros.
    ///
    /// # Panics
    /// Where that is more than the address space.
    pub fn new(len: usize) -> Self {
        let size = len.max(1).saturating_mul(size_of::<T>().max(1));
        let align = if size >= LARGE_PAGE { LARGE_PAGE } else { align_of::<T>() };
        // Aligned by hand: memory that is asked for with an alignment is cleared byte by byte, while other memory comes
        // as pages that the system clears when they are first touched, many of them never.
        let Ok(layout) = Layout::from_size_align(size.saturating_add(align), 1) else {
            panic!("a table of {size} bytes");
        };
        // SAFETY: the size is not zero, and there is room for it from the aligned place on.
        unsafe {
            let Some(memory) = NonNull::new(alloc_zeroed(layout)) else { handle_alloc_error(layout) };
            let start = memory.add(memory.align_offset(align));
            if align == LARGE_PAGE {
                advise(start, size);
            }
            Self { memory, layout, start: start.cast(), len }
        }
    }
}

/// Ask for large pages; without them everything works, only slower.
fn advise(start: NonNull<u8>, size: usize) {
    #[cfg(target_os = "linux")]
    {
        use std::ffi::{c_int, c_void};
        unsafe extern "C" {
            fn madvise(start: *mut c_void, length: usize, advice: c_int) -> c_int;
        }
        const MADV_HUGEPAGE: c_int = 14;
        // SAFETY: advice about whole pages of our own; the C library is linked anyway.
        unsafe { madvise(start.as_ptr().cast(), size, MADV_HUGEPAGE) };
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (start, size);
}

impl<T: Zeroed> Drop for Table<T> {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout; the values need no drop.
        unsafe { dealloc(self.memory.as_ptr(), self.layout) };
    }
}

impl<T: Zeroed> Deref for Table<T> {
    type Target = [T];

    #[inline(always)]
    fn deref(&self) -> &[T] {
        // SAFETY: `len` values, all of them initialised.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl<T: Zeroed> DerefMut for Table<T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above, and borrowed for writing.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

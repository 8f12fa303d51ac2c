//! Where ids are written: straight into the caller's array, of the width that the caller wants, or nowhere.

use std::mem::MaybeUninit;

/// Where ids go: an array of them, or a count.
pub trait Output {
    type Item;

    /// Room for so many more ids.
    fn reserve(&mut self, room: usize);

    /// The number of ids so far.
    fn count(&self) -> usize;

    /// Where the next id goes.
    fn end(&mut self) -> *mut Self::Item;

    /// # Safety
    /// `count` ids have been put at the end.
    unsafe fn advance(&mut self, count: usize);

    /// Take ids back.
    ///
    /// # Safety
    /// There are so many.
    unsafe fn retract(&mut self, count: usize);

    /// # Safety
    /// There is room at `at`.
    unsafe fn put(at: *mut Self::Item, id: u32);

    /// Eight ids at once.
    ///
    /// # Safety
    /// There is room for eight at `at`.
    #[inline(always)]
    unsafe fn put_eight(at: *mut Self::Item, ids: &[u16; 8]) {
        // From a copy, which cannot overlap with the output, so that vectors are moved.
        for (i, id) in (*ids).into_iter().enumerate() {
            // SAFETY: passed on.
            unsafe { Self::put(at.add(i), u32::from(id)) };
        }
    }

    /// Append ids.
    #[inline(always)]
    fn extend(&mut self, ids: impl IntoIterator<Item = u32, IntoIter: ExactSizeIterator>) {
        let ids = ids.into_iter();
        let count = ids.len();
        self.reserve(count);
        let end = self.end();
        for (i, id) in ids.take(count).enumerate() {
            // SAFETY: room was made.
            unsafe { Self::put(end.add(i), id) };
        }
        // SAFETY: so many were put.
        unsafe { self.advance(count) };
    }
}

/// What an id is stored as: u16 where the vocabulary fits, u32.
pub trait Id: Copy + Default + Into<u32> + Send + Sync + 'static {
    fn from_u32(id: u32) -> Self;
}

impl Id for u16 {
    #[inline(always)]
    fn from_u32(id: u32) -> Self {
        id as u16
    }
}

impl Id for u32 {
    #[inline(always)]
    fn from_u32(id: u32) -> Self {
        id
    }
}

impl<I: Id> Output for Vec<I> {
    type Item = I;

    #[inline(always)]
    fn reserve(&mut self, room: usize) {
        Vec::reserve(self, room);
    }

    #[inline(always)]
    fn count(&self) -> usize {
        Vec::len(self)
    }

    #[inline(always)]
    fn end(&mut self) -> *mut I {
        self.spare_capacity_mut().as_mut_ptr().cast()
    }

    #[inline(always)]
    unsafe fn advance(&mut self, count: usize) {
        // SAFETY: the caller has put so many.
        unsafe { self.set_len(Vec::len(self) + count) };
    }

    #[inline(always)]
    unsafe fn retract(&mut self, count: usize) {
        self.truncate(Vec::len(self) - count);
    }

    #[inline(always)]
    unsafe fn put(at: *mut I, id: u32) {
        // SAFETY: passed on.
        unsafe { at.write(I::from_u32(id)) };
    }
}

/// The ids of a short text, without memory from the allocator: room for so many.
pub struct Few<const ROOM: usize> {
    ids: [MaybeUninit<u32>; ROOM],
    count: usize,
}

impl<const ROOM: usize> Few<ROOM> {
    #[inline(always)]
    pub fn ids(&self) -> &[u32] {
        // SAFETY: the first `count` have been put.
        unsafe { std::slice::from_raw_parts(self.ids.as_ptr().cast(), self.count) }
    }
}

impl<const ROOM: usize> Default for Few<ROOM> {
    #[inline(always)]
    fn default() -> Self {
        Self { ids: [MaybeUninit::uninit(); ROOM], count: 0 }
    }
}

impl<const ROOM: usize> Output for Few<ROOM> {
    type Item = u32;

    #[inline(always)]
    fn reserve(&mut self, room: usize) {
        assert!(room <= ROOM - self.count, "more than a few ids");
    }

    #[inline(always)]
    fn count(&self) -> usize {
        self.count
    }

    #[inline(always)]
    fn end(&mut self) -> *mut u32 {
        self.ids[self.count..].as_mut_ptr().cast()
    }

    #[inline(always)]
    unsafe fn advance(&mut self, count: usize) {
        self.count += count;
    }

    #[inline(always)]
    unsafe fn retract(&mut self, count: usize) {
        self.count -= count;
    }

    #[inline(always)]
    unsafe fn put(at: *mut u32, id: u32) {
        // SAFETY: passed on.
        unsafe { at.write(id) };
    }
}

/// The output that only counts.
impl Output for usize {
    type Item = ();

    #[inline(always)]
    fn reserve(&mut self, _: usize) {}

    #[inline(always)]
    fn count(&self) -> usize {
        *self
    }

    #[inline(always)]
    fn end(&mut self) -> *mut () {
        std::ptr::NonNull::dangling().as_ptr()
    }

    #[inline(always)]
    unsafe fn advance(&mut self, count: usize) {
        *self += count;
    }

    #[inline(always)]
    unsafe fn retract(&mut self, count: usize) {
        *self -= count;
    }

    #[inline(always)]
    unsafe fn put(_: *mut (), _: u32) {}
}

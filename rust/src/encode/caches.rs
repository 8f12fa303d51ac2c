//! The caches of pieces, one for each thread that encodes, kept from call to call.

use crate::encode::Cache;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// The caches of threads that are not encoding just now, for the next ones to use.
///
/// Without a lock: one that another thread holds while the process forks stays locked in the child for ever. Here a
/// fork loses at most the caches that were in use.
#[derive(Default)]
pub struct Caches([AtomicPtr<Cache>; 32]);

impl Caches {
    /// Run `work` with a cache: a warm one if there is one.
    #[inline]
    pub fn with<R>(&self, work: impl FnOnce(&mut Cache) -> R) -> R {
        let mut cache = self.take();
        let result = work(&mut cache);
        self.put(cache);
        result
    }

    #[inline]
    fn take(&self) -> Box<Cache> {
        for slot in &self.0 {
            if slot.load(Ordering::Relaxed).is_null() {
                continue;
            }
            let cache = slot.swap(ptr::null_mut(), Ordering::Acquire);
            if !cache.is_null() {
                // SAFETY: `put` made the pointer of a box, and the swap gave it to this thread alone.
                return unsafe { Box::from_raw(cache) };
            }
        }
        Box::default()
    }

    #[inline]
    fn put(&self, cache: Box<Cache>) {
        let cache = Box::into_raw(cache);
        for slot in &self.0 {
            if slot.compare_exchange(ptr::null_mut(), cache, Ordering::Release, Ordering::Relaxed).is_ok() {
                return;
            }
        }
        // SAFETY: the pointer is of the box above, and no slot took it.
        drop(unsafe { Box::from_raw(cache) });
    }
}

impl Drop for Caches {
    fn drop(&mut self) {
        for slot in &mut self.0 {
            if !slot.get_mut().is_null() {
                // SAFETY: as in `take`; nobody else has a reference to `self` now.
                drop(unsafe { Box::from_raw(*slot.get_mut()) });
            }
        }
    }
}

//! A value that is made when it is first asked for.
//!
//! Without a lock, unlike the standard library's: one that another thread holds while the process forks stays locked in
//! the child for ever. Two threads that come first at the same time both make the value, and one of the two is kept.

use std::marker::PhantomData;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// See the top of this file.
pub struct Lazy<T> {
    place: AtomicPtr<T>,
    owned: PhantomData<T>,
}

impl<T> Default for Lazy<T> {
    fn default() -> Self {
        Self { place: AtomicPtr::default(), owned: PhantomData }
    }
}

impl<T: Send + Sync> Lazy<T> {
    /// The value; `make` is called where there is none yet.
    #[inline]
    pub fn get_or_make(&self, make: impl FnOnce() -> T) -> &T {
        let mut found = self.place.load(Ordering::Acquire);
        if found.is_null() {
            found = self.put(make());
        }
        // SAFETY: a box that lives as long as `self`; nobody changes or takes it.
        unsafe { &*found }
    }

    #[cold]
    fn put(&self, value: T) -> *mut T {
        let own = Box::into_raw(Box::new(value));
        match self.place.compare_exchange(ptr::null_mut(), own, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => own,
            Err(others) => {
                // SAFETY: the box above, which nobody else has seen.
                drop(unsafe { Box::from_raw(own) });
                others
            }
        }
    }
}

impl<T> Drop for Lazy<T> {
    fn drop(&mut self) {
        let found = *self.place.get_mut();
        if !found.is_null() {
            // SAFETY: `put` made it of a box; nobody else has a reference to `self` now.
            drop(unsafe { Box::from_raw(found) });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    static ALIVE: AtomicUsize = AtomicUsize::new(0);

    struct Counted(usize);

    impl Counted {
        fn new(number: usize) -> Self {
            ALIVE.fetch_add(1, Ordering::SeqCst);
            Self(number)
        }
    }

    impl Drop for Counted {
        fn drop(&mut self) {
            ALIVE.fetch_sub(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn all_threads_get_the_same_value() {
        let lazy = Lazy::default();
        let found: Vec<usize> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8)
                .map(|i| {
                    scope.spawn({
                        let lazy = &lazy;
                        move || lazy.get_or_make(|| Counted::new(i)).0
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
        });
        assert!(found.iter().all(|&number| number == found[0]), "{found:?}");
        assert_eq!(ALIVE.load(Ordering::SeqCst), 1);
        drop(lazy);
        assert_eq!(ALIVE.load(Ordering::SeqCst), 0);
    }
}

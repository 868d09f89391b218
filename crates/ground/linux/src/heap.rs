//! Returns freed memory to the kernel.
//!
//! **Problem.** A window with 10,000 threads needs some MB for a moment. The C library keeps freed
//! memory, and raises its threshold each time a large buffer is freed.
//!
//! **Approach.** Fix the threshold, so that the library returns the top of its heap and large
//! buffers at once. With 10,000 threads this leaves 21 MB resident instead of 30; the CPU time is
//! too small to measure.
//!
//! **Limits.** GNU's C library only.

/// The library returns freed memory beyond this many bytes.
#[cfg(target_env = "gnu")]
const KEEP_BYTES: libc::c_int = 128 * 1024;

/// From now on, freed memory goes back to the kernel.
pub fn give_back_freed() {
    #[cfg(target_env = "gnu")]
    // SAFETY: mallopt sets one number in the allocator; any thread may call it at any time.
    unsafe {
        libc::mallopt(libc::M_TRIM_THRESHOLD, KEEP_BYTES);
    }
}

/// Gives free pages within the heaps back, too. Each heap is locked meanwhile.
pub fn trim() {
    #[cfg(target_env = "gnu")]
    // SAFETY: malloc_trim may be called at any time and from any thread; it changes no memory in
    // use.
    unsafe {
        libc::malloc_trim(0);
    }
}

//! Memory of a daemon that uses much of it once a window.
//!
//! **Problem.** A window with 10,000 threads takes some MB for a moment. The C library keeps what is freed, ever more as it learns
//! from large buffers what to keep.
//!
//! **Approach.** It is told to give the top of its heap, and large buffers, back at once: 21 MB resident instead of 30 at 10,000
//! threads, for CPU time that is lost in the noise.
//!
//! **Limits.** GNU's C library only; others do as they like.

/// Freed memory beyond this many bytes goes back to the kernel.
#[cfg(target_env = "gnu")]
const KEEP_BYTES: libc::c_int = 128 * 1024;

/// From now on, freed memory goes back to the kernel.
pub fn give_back_freed() {
    #[cfg(target_env = "gnu")]
    // SAFETY: sets a number of the allocator's; it is allowed at any time, from any thread.
    unsafe {
        libc::mallopt(libc::M_TRIM_THRESHOLD, KEEP_BYTES);
    }
}

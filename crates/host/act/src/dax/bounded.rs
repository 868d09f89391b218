//! A system call that may wait for long, with an end.
//!
//! **Problem.** XFS waits for pinned pages of a DAX file as long as somebody holds them, and holds
//! the file's locks meanwhile.
//!
//! **Approach.** A timer sends signals to the calling thread, whose handler does nothing. The first
//! one that comes while the call waits makes it return EINTR. One that comes before the call would
//! be lost, so they go on until the call returns.
//!
//! **Limits.** Only waits that the kernel lets signals interrupt have an end.

use std::io;
use std::mem::MaybeUninit;
use std::ptr::null_mut;
use std::sync::OnceLock;
use std::time::Duration;

/// The signal: a real-time one that the C library keeps for nobody, and homenode uses for nothing
/// else.
fn signal() -> libc::c_int {
    libc::SIGRTMIN() + 7
}

extern "C" fn nothing(_: libc::c_int) {}

/// Gives the signal its handler, once; the errno if that failed.
fn handler() -> io::Result<()> {
    static FAILED: OnceLock<Option<i32>> = OnceLock::new();
    let failed = FAILED.get_or_init(|| {
        // SAFETY: an all-zero sigaction is valid: an empty mask, and no SA_RESTART. The handler
        // does nothing.
        let rc = unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = nothing as extern "C" fn(libc::c_int) as usize;
            libc::sigaction(signal(), &raw const action, null_mut())
        };
        if rc == 0 { None } else { io::Error::last_os_error().raw_os_error() }
    });
    failed.map_or(Ok(()), |errno| Err(io::Error::from_raw_os_error(errno)))
}

/// Deleted when dropped.
struct Timer(libc::timer_t);

impl Timer {
    fn new(first: Duration) -> io::Result<Self> {
        handler()?;
        let mut timer = MaybeUninit::uninit();
        // SAFETY: the kernel reads the event, which is initialised, and writes the timer's id.
        let rc = unsafe {
            let mut event: libc::sigevent = std::mem::zeroed();
            event.sigev_notify = libc::SIGEV_THREAD_ID;
            event.sigev_signo = signal();
            event.sigev_notify_thread_id = libc::gettid();
            libc::timer_create(libc::CLOCK_MONOTONIC, &raw mut event, timer.as_mut_ptr())
        };
        if rc != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the call has succeeded.
        let timer = Self(unsafe { timer.assume_init() });
        let of = |time: Duration| libc::timespec {
            tv_sec: time.as_secs() as libc::time_t,
            tv_nsec: time.subsec_nanos().into(),
        };
        let times = libc::itimerspec { it_interval: of(Duration::from_millis(5)), it_value: of(first) };
        // SAFETY: a timer of ours, and an initialised structure that the kernel reads.
        match unsafe { libc::timer_settime(timer.0, 0, &raw const times, null_mut()) } {
            0 => Ok(timer),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        // SAFETY: a timer of ours, which nothing refers to any more.
        unsafe { libc::timer_delete(self.0) };
    }
}

/// Makes a system call. EINTR if it waited for as long as this.
pub(super) fn call<T>(most: Duration, call: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    let _timer = Timer::new(most)?;
    call()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nobody writes to the pipe, so that only the signal ends the call.
    #[test]
    fn a_call_that_waits_ends() {
        let (pipe, _writer) = rustix::pipe::pipe().unwrap();
        for _ in 0..3 {
            let read = call(Duration::from_millis(1), || Ok(rustix::io::read(&pipe, &mut [0_u8; 1])?));
            assert_eq!(read.unwrap_err().raw_os_error(), Some(libc::EINTR));
        }
        assert_eq!(call(Duration::from_secs(3600), || Ok(7)).unwrap(), 7);
    }
}

//! Programs that together have more requests under way than the kernel has slots for.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use mount::Cache;
use rustix::fs::{Advice, fadvise};
use rustix::mm::{MapFlags, ProtFlags, mmap};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use testing::{Case, cases, mounting};

use crate::harness::Mount;

pub const CASES: &[Case] = cases![[mounting()] many_direct_writes_beside_readers_of_the_file_end];

/// One write of it takes more requests than the kernel has slots for those in the background.
const LEN: usize = 80 << 20;
const WRITES: usize = 10;
const READERS: usize = 3;
/// Longest time that the load can be thought to take.
const LONGEST: Duration = Duration::from_secs(180);

/// Writes a file past the cache, in single large writes, while others read it through the cache and
/// one changes it by a mapping.
pub fn be_load(args: &[String]) {
    let path = &args[0];
    let done = AtomicBool::new(false);
    let going = || !done.load(Ordering::Relaxed);
    let open = || OpenOptions::new().read(true).write(true).open(path).unwrap();
    thread::scope(|scope| {
        for _ in 0..READERS {
            scope.spawn(|| {
                let (file, mut part) = (open(), vec![0; 1 << 20]);
                for at in (0..LEN as u64).step_by(part.len()).cycle().take_while(|_| going()) {
                    file.read_exact_at(&mut part, at).unwrap();
                    if at == 0 {
                        fadvise(&file, 0, None, Advice::DontNeed).unwrap();
                    }
                }
            });
        }
        scope.spawn(|| {
            let file = open();
            let flags = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
            // SAFETY: the mapping lies where the kernel finds room, and stays until the process
            // ends.
            let at = unsafe { mmap(std::ptr::null_mut(), LEN, flags.0, flags.1, &file, 0).unwrap() };
            for page in (0..LEN).step_by(4096).cycle().take_while(|_| going()) {
                // SAFETY: the byte is in the mapping, which only this thread uses.
                unsafe { at.cast::<u8>().add(page).write_volatile(2) };
                thread::sleep(Duration::from_micros(100));
            }
        });
        let direct = OpenOptions::new().write(true).custom_flags(libc::O_DIRECT).open(path).unwrap();
        let mut memory = vec![3_u8; LEN + 4096];
        let begin = memory.as_ptr().align_offset(4096);
        let data = &mut memory[begin..begin + LEN];
        for round in 0..WRITES {
            data.fill(round as u8);
            direct.write_all_at(data, 0).unwrap();
        }
        done.store(true, Ordering::Relaxed);
    });
}

/// Ends all requests of a mount with an error, also those that wait for each other, so that its
/// users can end.
fn abort(device: u32) {
    let control = tempfile::tempdir().unwrap();
    mount("fusectl", control.path(), "fusectl", MountFlags::empty(), None).unwrap();
    let told = std::fs::write(control.path().join(device.to_string()).join("abort"), "1");
    unmount(control.path(), UnmountFlags::empty()).unwrap();
    assert!(told.is_ok() || told.is_err_and(|error| error.kind() == ErrorKind::NotFound));
}

/// Answers to direct writes waited for a page to be read, that for a slot of the kernel's for
/// requests in the background, and all slots were those of the answers. Neither the programs nor
/// the server could be killed.
fn many_direct_writes_beside_readers_of_the_file_end() {
    let served = Mount::new(Cache::Kernel, 64);
    let path = served.path("f");
    let device = rustix::fs::minor(rustix::fs::stat(served.dir()).unwrap().st_dev);
    let mut file = File::create(&path).unwrap();
    (0..LEN >> 20).for_each(|_| file.write_all(&[1; 1 << 20]).unwrap());
    drop(file);
    let mut load = testing::myself("load").arg(&path).spawn().unwrap();
    let begin = Instant::now();
    let ended = loop {
        match load.try_wait().unwrap() {
            None if begin.elapsed() > LONGEST => break None,
            None => thread::sleep(Duration::from_millis(20)),
            ended => break ended,
        }
    };
    if ended.is_none() {
        abort(device);
        load.kill().unwrap();
        load.wait().unwrap();
    }
    assert!(ended.is_some_and(|status| status.success()), "the load stood still, or failed: {ended:?}");
    served.end();
}

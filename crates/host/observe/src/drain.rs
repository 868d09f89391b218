//! Empties a hash map in batches.
//!
//! The batched iterator of libbpf-rs takes a short batch for the last one. But the kernel also
//! returns short batches in the middle of a map: it leaves a bucket that does not fit for the next
//! call.

use std::io;

/// Reused between windows.
#[derive(Debug, Default)]
pub(super) struct Buffer {
    keys: Vec<u8>,
    values: Vec<u8>,
}

/// Entries per call: 200 KB of buffers, and 16 calls for a full default table.
const BATCH: usize = 4096;

impl Buffer {
    /// Removes all entries from the map behind `fd`, and returns them. `sizes` are those of a key
    /// and a value; what `decode` has no name for is left out.
    pub fn all<T>(
        &mut self,
        fd: i32,
        sizes: (usize, usize),
        decode: impl Fn(&[u8], &[u8]) -> Option<T>,
    ) -> io::Result<Vec<T>> {
        let mut entries = Vec::new();
        let mut batch = BATCH;
        // Room for the kernel's cursor: 4 bytes for a hash map.
        let (mut cursor, mut next) = ([0u8; 8], [0u8; 8]);
        let mut first = true;
        loop {
            self.keys.resize(batch * sizes.0, 0);
            self.values.resize(batch * sizes.1, 0);
            let mut count = batch as u32;
            let from = if first { std::ptr::null_mut() } else { cursor.as_mut_ptr() };
            // SAFETY: keys and values hold `count` elements of the map's key and value size, which
            // `programs` compares with the compiled programs'; `from` is null or a cursor of the
            // last call; all outlive the call.
            let result = unsafe {
                libbpf_sys::bpf_map_lookup_and_delete_batch(
                    fd,
                    from.cast(),
                    next.as_mut_ptr().cast(),
                    self.keys.as_mut_ptr().cast(),
                    self.values.as_mut_ptr().cast(),
                    &mut count,
                    std::ptr::null(),
                )
            };
            let error = (result < 0).then(|| -result);
            match error {
                None | Some(libc::ENOENT) => {}
                Some(libc::EINTR) => continue,
                // One bucket holds more than a batch.
                Some(libc::ENOSPC) => {
                    batch *= 2;
                    continue;
                }
                Some(raw) => return Err(io::Error::from_raw_os_error(raw)),
            }
            let keys = self.keys.chunks_exact(sizes.0);
            let values = self.values.chunks_exact(sizes.1);
            entries.extend(keys.zip(values).take(count as usize).filter_map(|(key, value)| decode(key, value)));
            if error.is_some() {
                return Ok(entries);
            }
            cursor = next;
            first = false;
        }
    }
}

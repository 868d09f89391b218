//! Files on hugetlbfs: huge pages are always in memory once they are allocated.
//!
//! Neither `mincore(2)` nor `cachestat(2)` knows them, and touching a hole would allocate a huge
//! page. So for a file with holes only the resident size is reported, not the nodes.

use super::map::{Arena, Toucher};
use super::open::Opened;
use super::{Residency, ResidencyError, count};

/// File bytes mapped at a time.
const CHUNK: u64 = 1 << 30;

pub(super) fn locate(file: &Opened, residency: &mut Residency) -> Result<(), ResidencyError> {
    residency.resident = file.allocated.min(file.size);
    if file.allocated < file.size {
        if residency.resident > 0 {
            let note = "the file has holes, which counting its pages would fill: the nodes are unknown";
            residency.notes.push(note.to_owned());
        }
        return Ok(());
    }
    let page = file.block.max(rustix::param::page_size() as u64);
    let chunk = CHUNK.next_multiple_of(page);
    let failed = |what| move |e| ResidencyError::file(what, &file.path, e);
    let arena = Arena::reserve(1, chunk as usize, page as usize).map_err(failed("reserve address space for"))?;
    let toucher = Toucher::new().map_err(failed("touch the pages of"))?;
    for offset in (0..file.size).step_by(chunk as usize) {
        let len = chunk.min(file.size - offset) as usize;
        let at = arena.map(0, &file.fd, offset, len).map_err(failed("map"))?;
        toucher.touch((0..len).step_by(page as usize).map(|p| at + p)).map_err(failed("touch the pages of"))?;
        let found = count::mapping(at, len as u64).map_err(failed(count::COUNT))?;
        for (node, bytes) in found {
            residency.nodes.add(node, bytes);
        }
    }
    residency.resident = residency.nodes.total();
    Ok(())
}

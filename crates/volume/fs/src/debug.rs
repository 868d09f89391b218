//! A look at what is on the medium, for people.

use crate::error::{Damage, Error, Result};
use crate::format::inode::{self, Inode};
use crate::format::{Ino, LINE};
use crate::log;
use crate::medium::Medium;
use crate::mount;
use crate::scan;
use crate::twins;

/// Whether both copies of all metadata that counts say the same, where nothing is under way: the
/// first ones that do not.
pub fn twins_agree(medium: Box<dyn Medium>) -> Result<Vec<Damage>> {
    let store = mount::open(medium)?;
    let inodes = scan::inodes(&store, &scan::journals(&store)?.0, &|_, _| true)?;
    twins::damage(&store, twins::tables(&store).chain(twins::pages(&inodes)), true)
}

/// One line for the inode and one for each entry of its log, as far as it can be read; the reason
/// why not comes last.
pub fn log_lines(medium: Box<dyn Medium>, ino: Ino) -> Result<Vec<String>> {
    let store = mount::open(medium)?;
    let (block, offset) = store.inode_at(ino)?;
    let mut line = [0; LINE];
    store.read(block, offset, &mut line)?;
    let inode = inode::decode(ino, &line).map_err(|what| Damage::Inode { ino, what })?;
    let Inode::Used { generation, head, tail } = inode else { return Err(Error::NotFound) };
    let place = format!(
        "{ino:?}, generation {generation}: log from {}/{} to {}/{}",
        head.page, head.slot, tail.page, tail.slot
    );
    let mut lines = vec![place];
    let end = log::replay(&store, (ino, generation), head, tail, |entry, time| {
        lines.push(format!("{}.{:09}  {entry:?}", time.div_euclid(1_000_000_000), time.rem_euclid(1_000_000_000)));
        Ok(())
    });
    lines.extend(end.err().map(|e| e.to_string()));
    Ok(lines)
}

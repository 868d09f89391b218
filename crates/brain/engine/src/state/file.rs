//! The open state file: append, fsync, rewrite.

use std::fs::{File, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use super::records::{Job, Owned, Record, lines};
use super::{STATE, StateDir, VERSION, open_private};
use crate::EngineError;

/// Below this size a file is never worth rewriting.
const SMALL: u64 = 64 << 10;

#[derive(Debug)]
pub struct StateFile {
    dir: PathBuf,
    path: PathBuf,
    file: File,
    /// Bytes of whole records in the file.
    len: u64,
    /// `len` after the last rewrite.
    base: u64,
}

impl StateFile {
    /// Replaces the state file of this directory by one that holds these threads, and opens it for
    /// more. The old one stays in place until the new one is on disk.
    pub fn create(dir: &StateDir, epoch: Option<&str>, owned: &[Owned]) -> Result<Self, EngineError> {
        Self::write(dir.path(), epoch, owned, &[])
    }

    fn write(dir: &Path, epoch: Option<&str>, owned: &[Owned], jobs: &[Job]) -> Result<Self, EngineError> {
        let path = dir.join(STATE);
        let new = dir.join("state.jsonl.new");
        let result = Self::write_new(&new, epoch, owned, jobs).and_then(|(file, len)| {
            std::fs::rename(&new, &path).map_err(EngineError::io("replace", &path))?;
            Ok((file, len))
        });
        let (file, len) = result.inspect_err(|_| {
            let _ = std::fs::remove_file(&new);
        })?;
        // The rename is on disk once the directory is. If it is lost, the old file serves as well.
        let _ = File::open(dir).and_then(|d| d.sync_all());
        Ok(Self { dir: dir.to_owned(), path, file, len, base: len })
    }

    fn write_new(path: &Path, epoch: Option<&str>, owned: &[Owned], jobs: &[Job]) -> Result<(File, u64), EngineError> {
        let mut records = vec![Record::Run { version: VERSION, epoch: epoch.map(str::to_owned) }];
        for h in owned {
            records.extend(h.candidates.iter().map(|undo| Record::hold(&h.comm, undo)));
            // A later move that is not made does not affect this one.
            if let [undo] = h.candidates.as_slice() {
                records.push(Record::made(undo));
            }
        }
        records.extend(jobs.iter().cloned().map(Record::Job));
        let bytes = lines(&records).map_err(|e| EngineError::io("write", path)(e.into()))?;
        let mut options = OpenOptions::new();
        let options = options.write(true).create(true).truncate(true);
        let mut file = open_private(options, path).map_err(EngineError::io("create", path))?;
        file.write_all(&bytes).map_err(EngineError::io("write", path))?;
        file.sync_data().map_err(EngineError::io("fsync", path))?;
        Ok((file, bytes.len() as u64))
    }

    /// Appends records, all or none. With `sync` they are on disk when this returns.
    pub fn append(&mut self, records: &[Record], sync: bool) -> Result<(), EngineError> {
        if records.is_empty() {
            return Ok(());
        }
        let bytes = lines(records).map_err(|e| EngineError::io("write", &self.path)(e.into()))?;
        let written =
            self.file.write_all(&bytes).map_err(EngineError::io("write", &self.path)).and_then(|()| match sync {
                true => self.file.sync_data().map_err(EngineError::io("fsync", &self.path)),
                false => Ok(()),
            });
        match written {
            Ok(()) => {
                self.len += bytes.len() as u64;
                Ok(())
            }
            Err(error) => {
                // Nothing of it may stay. A record without its move would do no harm, but half a
                // line would spoil the next one.
                let _ = self.file.set_len(self.len).and_then(|()| self.file.seek(SeekFrom::Start(self.len)));
                Err(error)
            }
        }
    }

    /// Whether most of the file is history.
    pub fn worth_rewriting(&self) -> bool {
        self.len > SMALL && self.len > 4 * self.base
    }

    /// Rewrites the file so that it holds these threads and jobs only. On an error the old file
    /// stays in use.
    pub fn rewrite(&mut self, epoch: Option<&str>, owned: &[Owned], jobs: &[Job]) -> Result<(), EngineError> {
        // If this try fails, the next one waits until the file has doubled: a try is expensive.
        self.base = self.len / 2;
        *self = Self::write(&self.dir, epoch, owned, jobs)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Masks, Subject, Undo};

    fn thread(tid: u32) -> Subject {
        placement::testing::subject(tid, 7)
    }

    fn owned(tid: u32) -> Owned {
        let set = |t: &str| t.parse().unwrap();
        let masks = Some(Masks { before: set("0-3"), ours: set("0-1"), unbound: false });
        let undo = Undo { subject: thread(tid), pid: 1, masks, payload: None };
        Owned { comm: "fio".into(), candidates: vec![undo] }
    }

    fn hold(tid: u32) -> Record {
        Record::Hold { comm: "fio".into(), undo: owned(tid).candidates[0].clone() }
    }

    #[test]
    fn what_was_appended_is_loaded() {
        let tmp = tempfile::tempdir().unwrap();
        let dir = StateDir::open(tmp.path()).unwrap();
        let mut file = StateFile::create(&dir, Some("boot"), &[owned(1)]).unwrap();
        file.append(&[hold(2), hold(3)], true).unwrap();
        file.append(&[Record::Done { subject: thread(2) }], false).unwrap();
        let loaded = dir.load().unwrap();
        assert_eq!(loaded.epoch.as_deref(), Some("boot"));
        assert_eq!(loaded.owned, [owned(1), owned(3)]);
    }

    #[test]
    fn the_file_is_rewritten_once_it_is_mostly_history() {
        let tmp = tempfile::tempdir().unwrap();
        let dir = StateDir::open(tmp.path()).unwrap();
        let mut file = StateFile::create(&dir, None, &[]).unwrap();
        let mut largest = 0;
        for tid in 0..5_000 {
            let (made, done) =
                (Record::Made { subject: thread(tid), ours: None }, Record::Done { subject: thread(tid) });
            file.append(&[hold(tid), made, done], false).unwrap();
            if file.worth_rewriting() {
                file.rewrite(None, &[owned(9)], &[]).unwrap();
            }
            largest = largest.max(std::fs::metadata(tmp.path().join(STATE)).unwrap().len());
        }
        assert!(largest < 2 * SMALL, "{largest}");
        assert_eq!(dir.load().unwrap().owned[0], owned(9));
    }
}

//! Operations that can be done to a volume and to the reference.

use fs::{Error, Ino, Kind, Migration, NewFile, Rename, SetAttributes, Volume};

use crate::model::{DEVICE, DIR, FILE, LINK, Model, Node};

#[derive(Clone, Debug, PartialEq)]
pub enum Op {
    Create(String),
    Mkdir(String),
    Symlink(String, String),
    Write(String, u64, usize, u8),
    Append(String, usize, u8),
    Truncate(String, u64),
    Allocate(String, u64, u64, bool),
    Punch(String, u64, u64),
    Zero(String, u64, u64, bool),
    Link(String, String),
    /// A file that is made and written before it gets its name.
    Unnamed(String, usize, u8),
    Unlink(String),
    Rmdir(String),
    Rename(String, String, Rename),
    Chmod(String, u32),
    /// Sets the time of the last access, which nothing else changes.
    AccessTime(String, i64),
    SetXattr(String, String, usize),
    RemoveXattr(String, String),
    Migrate(String, u32),
    /// To a node, only these blocks.
    MigrateRange(String, u32, u64, u64),
    /// Blocks that an operation frees are given back in steps of two extents, of which so many
    /// follow it.
    Leaving(usize, Box<Op>),
    /// All out of a region; then it is used again.
    Drain(usize),
    Clean(String),
    DropHistory(String),
    /// As after a kernel's `forget`: it is read again at the next use.
    Forget(String),
    /// A log is cleaned a few slots at a time; when half of the steps are done something happens.
    CleanAround(String, usize, Box<Op>),
}

use Op::*;

/// Bytes that are different everywhere, so that a block in the wrong place is seen.
fn bytes(offset: u64, len: usize, fill: u8) -> Vec<u8> {
    (offset..offset + len as u64).map(|i| (i as u8) ^ (i >> 8) as u8 ^ fill | 1).collect()
}

type Done = Result<(), i32>;

impl Op {
    /// The same elsewhere: each path becomes what `place` makes of it.
    pub fn at(&self, place: &dyn Fn(&str) -> String) -> Self {
        let p = |path: &String| place(path);
        match self {
            Create(a) => Create(p(a)),
            Mkdir(a) => Mkdir(p(a)),
            Symlink(a, target) => Symlink(p(a), target.clone()),
            Write(a, offset, len, fill) => Write(p(a), *offset, *len, *fill),
            Append(a, len, fill) => Append(p(a), *len, *fill),
            Truncate(a, size) => Truncate(p(a), *size),
            Allocate(a, offset, len, keep) => Allocate(p(a), *offset, *len, *keep),
            Punch(a, offset, len) => Punch(p(a), *offset, *len),
            Zero(a, offset, len, keep) => Zero(p(a), *offset, *len, *keep),
            Link(a, b) => Link(p(a), p(b)),
            Unnamed(a, len, fill) => Unnamed(p(a), *len, *fill),
            Unlink(a) => Unlink(p(a)),
            Rmdir(a) => Rmdir(p(a)),
            Rename(a, b, how) => Rename(p(a), p(b), *how),
            Chmod(a, mode) => Chmod(p(a), *mode),
            AccessTime(a, time) => AccessTime(p(a), *time),
            SetXattr(a, name, len) => SetXattr(p(a), name.clone(), *len),
            RemoveXattr(a, name) => RemoveXattr(p(a), name.clone()),
            Migrate(a, node) => Migrate(p(a), *node),
            MigrateRange(a, node, first, end) => MigrateRange(p(a), *node, *first, *end),
            Leaving(steps, op) => Leaving(*steps, Box::new(op.at(place))),
            Drain(region) => Drain(*region),
            Clean(a) => Clean(p(a)),
            DropHistory(a) => DropHistory(p(a)),
            Forget(a) => Forget(p(a)),
            CleanAround(a, slots, op) => CleanAround(p(a), *slots, Box::new(op.at(place))),
        }
    }

    pub fn on_volume(&self, volume: &Volume) -> Done {
        self.try_on_volume(volume).map_err(|e| match e {
            Error::Damaged(_) | Error::OutOfRange(_) | Error::ReadOnly => panic!("{self:?}: {e}"),
            e => e.errno(),
        })
    }

    fn try_on_volume(&self, v: &Volume) -> fs::Result<()> {
        let find = |path: &str| v.resolve(path.as_bytes());
        let parent = |path: &'_ str| -> fs::Result<(Ino, Vec<u8>)> {
            let (dir, name) = path.rsplit_once('/').unwrap();
            let dir = find(dir)?;
            if v.stat(dir)?.kind == Kind::Directory {
                Ok((dir, name.as_bytes().to_vec()))
            } else {
                Err(Error::NotDirectory)
            }
        };
        let make = |path: &str, new: NewFile<'_>| {
            let (dir, name) = parent(path)?;
            v.create(dir, &name, new).map(|_| ())
        };
        match self {
            Create(path) => make(path, NewFile { mode: FILE | 0o644, ..NewFile::default() }),
            Mkdir(path) => make(path, NewFile { mode: DIR | 0o755, ..NewFile::default() }),
            Symlink(path, target) => {
                make(path, NewFile { mode: LINK | 0o777, target: target.as_bytes(), ..NewFile::default() })
            }
            Write(path, offset, len, fill) => v.write(find(path)?, *offset, &bytes(*offset, *len, *fill)),
            Append(path, len, fill) => v.append(find(path)?, &bytes(0, *len, *fill)).map(|_| ()),
            Truncate(path, size) => v.truncate(find(path)?, *size),
            Allocate(path, offset, len, keep) => v.allocate(find(path)?, *offset, *len, *keep),
            Punch(path, offset, len) => v.punch_hole(find(path)?, *offset, *len),
            Zero(path, offset, len, keep) => v.zero_range(find(path)?, *offset, *len, *keep),
            Link(from, to) => {
                let from = find(from)?;
                let (dir, name) = parent(to)?;
                v.link(from, dir, &name).map(|_| ())
            }
            Unnamed(path, len, fill) => {
                let (dir, name) = parent(path)?;
                let new = NewFile { mode: FILE | 0o644, ..NewFile::default() };
                let made = v.create_unnamed(dir, new)?.ino;
                let named = v.append(made, &bytes(0, *len, *fill)).and_then(|_| v.link(made, dir, &name));
                v.close(made)?;
                named.map(|_| ())
            }
            Unlink(path) => {
                let (dir, name) = parent(path)?;
                v.unlink(dir, &name)
            }
            Rmdir(path) => {
                let (dir, name) = parent(path)?;
                v.rmdir(dir, &name)
            }
            Rename(from, to, how) => {
                let (from, to) = (parent(from)?, parent(to)?);
                v.rename((from.0, &from.1), (to.0, &to.1), *how)
            }
            Chmod(path, mode) => v
                .set_attributes(find(path)?, SetAttributes { mode: Some(*mode), ..SetAttributes::default() })
                .map(|_| ()),
            AccessTime(path, time) => v
                .set_attributes(find(path)?, SetAttributes { atime: Some(*time), ..SetAttributes::default() })
                .map(|_| ()),
            SetXattr(path, name, len) => {
                v.set_xattr(find(path)?, name.as_bytes(), &bytes(0, *len, 3), fs::SetXattr::Any)
            }
            RemoveXattr(path, name) => v.remove_xattr(find(path)?, name.as_bytes()),
            Migrate(path, node) => v.migrate_file(find(path)?, *node, None, |_| true).map(|_| ()),
            MigrateRange(path, to, first, end) => {
                let (from, end) = (Some(1 - to), Some(*end));
                let range = Migration { to: *to, from, first: *first, end, leave_log: true, ..Migration::default() };
                v.migrate(find(path)?, range, |_| true).map(|_| ())
            }
            Leaving(steps, op) => {
                v.leave_logs(Some(2));
                let done = op.try_on_volume(v);
                let _ = (0..*steps).take_while(|_| v.give_back()).count();
                v.leave_logs(None);
                done
            }
            Drain(region) => {
                v.drain(*region, |_| true)?;
                v.avoid(*region, false)
            }
            Clean(path) => v.clean(find(path)?),
            Forget(path) => {
                let ino = find(path)?;
                v.remember(ino)?;
                v.forget(ino, 1)
            }
            DropHistory(path) => v.drop_history(find(path)?).map(|_| ()),
            CleanAround(path, slots, op) => {
                let (ino, mut step, mut done) = (find(path)?, 0, None);
                let cleaned = v.clean_in_steps(ino, *slots, || {
                    step += 1;
                    if step == 2 {
                        done = Some(op.try_on_volume(v));
                    }
                    true
                });
                // Without room nothing is cleaned.
                match cleaned {
                    Ok(_) | Err(Error::NoSpace | Error::NotFound) => {}
                    Err(error) => return Err(error),
                }
                done.unwrap_or_else(|| op.try_on_volume(v))
            }
        }
    }

    pub fn on_model(&self, m: &mut Model) -> Done {
        let file = |m: &Model, path: &str| {
            let node = m.find(path)?;
            match m.nodes[node].mode & 0o170_000 {
                FILE => Ok(node),
                DIR => Err(libc::EISDIR),
                _ => Err(libc::EINVAL),
            }
        };
        match self {
            Create(path) => m.add(path, Node::new(FILE | 0o644)),
            Mkdir(path) => m.add(path, Node::new(DIR | 0o755)),
            Symlink(path, target) => m.add(path, Node { data: target.clone().into(), ..Node::new(LINK | 0o777) }),
            Write(path, offset, len, fill) => {
                let node = file(m, path)?;
                put(&mut m.nodes[node].data, *offset, &bytes(*offset, *len, *fill));
                Ok(())
            }
            Append(path, len, fill) => {
                let node = file(m, path)?;
                m.nodes[node].data.extend(bytes(0, *len, *fill));
                Ok(())
            }
            Truncate(path, size) => {
                let node = file(m, path)?;
                m.nodes[node].data.resize(*size as usize, 0);
                Ok(())
            }
            Allocate(path, offset, len, keep) => {
                let node = file(m, path)?;
                let data = &mut m.nodes[node].data;
                data.resize(data.len().max(if *keep { 0 } else { (offset + len) as usize }), 0);
                Ok(())
            }
            Punch(path, offset, len) | Zero(path, offset, len, true) => {
                let node = file(m, path)?;
                let data = &mut m.nodes[node].data;
                let (from, to) = ((*offset as usize).min(data.len()), ((offset + len) as usize).min(data.len()));
                data[from..to].fill(0);
                Ok(())
            }
            Zero(path, offset, len, false) => {
                let node = file(m, path)?;
                put(&mut m.nodes[node].data, *offset, &vec![0; *len as usize]);
                Ok(())
            }
            Link(from, to) => {
                let node = m.find(from)?;
                let (dir, name) = m.parent(to)?;
                if m.nodes[dir].names.contains_key(name) {
                    return Err(libc::EEXIST);
                }
                if m.is_dir(node) {
                    return Err(libc::EPERM);
                }
                m.nodes[dir].names.insert(name.into(), node);
                m.nodes[node].links += 1;
                Ok(())
            }
            Unnamed(path, len, fill) => m.add(path, Node { data: bytes(0, *len, *fill), ..Node::new(FILE | 0o644) }),
            Unlink(path) | Rmdir(path) => {
                let (dir, name) = m.parent(path)?;
                let node = *m.nodes[dir].names.get(name).ok_or(libc::ENOENT)?;
                match (self, m.is_dir(node)) {
                    (Unlink(_), true) => return Err(libc::EISDIR),
                    (Rmdir(_), false) => return Err(libc::ENOTDIR),
                    (Rmdir(_), true) if !m.nodes[node].names.is_empty() => return Err(libc::ENOTEMPTY),
                    _ => {}
                }
                m.nodes[dir].names.remove(name);
                lose_name(m, node);
                Ok(())
            }
            Rename(from, to, how) => rename(m, from, to, *how),
            Chmod(path, mode) => {
                let node = m.find(path)?;
                m.nodes[node].mode = m.nodes[node].mode & 0o170_000 | mode;
                Ok(())
            }
            AccessTime(path, time) => {
                let node = m.find(path)?;
                m.nodes[node].accessed = Some(*time);
                Ok(())
            }
            SetXattr(path, name, len) => {
                let node = m.find(path)?;
                m.nodes[node].xattrs.insert(name.clone().into(), bytes(0, *len, 3));
                Ok(())
            }
            RemoveXattr(path, name) => {
                let node = m.find(path)?;
                m.nodes[node].xattrs.remove(name.as_bytes()).map(|_| ()).ok_or(libc::ENODATA)
            }
            Drain(_) => Ok(()),
            Migrate(path, _) | MigrateRange(path, ..) | Clean(path) => m.find(path).map(|_| ()),
            DropHistory(path) | Forget(path) => m.find(path).map(|_| ()),
            Leaving(_, op) => op.on_model(m),
            CleanAround(path, _, op) => m.find(path).and_then(|_| op.on_model(m)),
        }
    }
}

fn put(data: &mut Vec<u8>, offset: u64, new: &[u8]) {
    if !new.is_empty() {
        let end = offset as usize + new.len();
        data.resize(data.len().max(end), 0);
        data[offset as usize..end].copy_from_slice(new);
    }
}

/// One name less; the data of what has none left goes, as a long run makes many.
fn lose_name(m: &mut Model, node: usize) {
    m.nodes[node].links -= 1;
    if m.nodes[node].links == 0 {
        m.nodes[node].data = Vec::new();
    }
}

fn rename(m: &mut Model, from: &str, to: &str, how: fs::Rename) -> Done {
    let ((old_dir, old), (new_dir, new)) = (m.parent(from)?, m.parent(to)?);
    let moved = *m.nodes[old_dir].names.get(old).ok_or(libc::ENOENT)?;
    let target = m.nodes[new_dir].names.get(new).copied();
    let circle = |m: &Model, node: usize, into: usize| m.is_dir(node) && m.is_below(node, into);
    if old_dir != new_dir {
        if circle(m, moved, new_dir) {
            return Err(libc::EINVAL);
        }
        if how == fs::Rename::Exchange && target.is_some_and(|target| circle(m, target, old_dir)) {
            return Err(libc::EINVAL);
        }
    }
    match (how, target) {
        (fs::Rename::NoReplace, Some(_)) => return Err(libc::EEXIST),
        (fs::Rename::Exchange, None) => return Err(libc::ENOENT),
        (_, Some(target)) if target == moved => return Ok(()),
        (fs::Rename::Exchange, Some(target)) => {
            m.nodes[old_dir].names.insert(old.into(), target);
            m.nodes[new_dir].names.insert(new.into(), moved);
            return Ok(());
        }
        (_, Some(target)) => {
            match (m.is_dir(moved), m.is_dir(target)) {
                (true, true) if !m.nodes[target].names.is_empty() => return Err(libc::ENOTEMPTY),
                (true, false) => return Err(libc::ENOTDIR),
                (false, true) => return Err(libc::EISDIR),
                _ => {}
            }
            lose_name(m, target);
        }
        (_, None) => {}
    }
    m.nodes[old_dir].names.remove(old);
    m.nodes[new_dir].names.insert(new.into(), moved);
    if matches!(how, fs::Rename::Whiteout { .. }) {
        m.add(from, Node::new(DEVICE))?;
    }
    Ok(())
}

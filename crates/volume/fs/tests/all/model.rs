//! The reference: a file system as simple as can be, and what both look like from outside.

use std::collections::BTreeMap;

use fs::{Ino, Kind, Volume};

/// Visible state of one name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Seen {
    pub mode: u32,
    pub links: u32,
    pub data: Vec<u8>,
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// The time of the last access, if it is before 1970: then an operation set it.
    pub accessed: Option<i64>,
}

/// Everything that can be seen, by path.
pub type Tree = BTreeMap<String, Seen>;

/// Larger files, which only damage makes, are not read.
const LARGEST: u64 = 1 << 20;

/// More directories in each other are a circle, which only damage makes.
const DEEPEST: usize = 150;

/// Visible state of a volume.
pub fn observe(volume: &Volume) -> Tree {
    try_observe(volume).unwrap()
}

/// The same for a volume that may be damaged.
pub fn try_observe(volume: &Volume) -> fs::Result<Tree> {
    let mut tree = Tree::new();
    observe_from(volume, Ino::ROOT, String::new(), &mut tree)?;
    Ok(tree)
}

fn observe_from(volume: &Volume, ino: Ino, path: String, tree: &mut Tree) -> fs::Result<()> {
    if path.matches('/').count() > DEEPEST {
        return Err(fs::Error::Invalid("directories without end"));
    }
    let stat = volume.stat(ino)?;
    let data = match stat.kind {
        Kind::File if stat.size > LARGEST => format!("{} bytes", stat.size).into_bytes(),
        Kind::File => {
            let mut data = vec![0xee; stat.size as usize];
            match volume.read(ino, 0, &mut data) {
                Ok(len) => assert_eq!(len, data.len()),
                Err(e) => data = format!("cannot be read: {e}").into_bytes(),
            }
            data
        }
        Kind::Symlink => volume.read_link(ino)?,
        _ => Vec::new(),
    };
    let xattr = |name: Vec<u8>| volume.xattr(ino, &name).map(|value| (name, value));
    let xattrs = volume.xattrs(ino)?.into_iter().map(xattr).collect::<fs::Result<_>>()?;
    let (mode, links) = (stat.attributes.mode, stat.attributes.links);
    let accessed = Some(stat.attributes.atime).filter(|time| *time < 0);
    let seen = Seen { mode, links, data, xattrs, accessed };
    if stat.kind == Kind::Directory {
        for name in volume.names(ino, 0, usize::MAX)? {
            let below = format!("{path}/{}", String::from_utf8_lossy(&name.name));
            if volume.lookup(ino, &name.name)?.kind != name.named.kind {
                return Err(fs::Error::Invalid("a name says another kind than its inode"));
            }
            observe_from(volume, name.named.ino, below, tree)?;
        }
        assert_eq!(volume.lookup(ino, b".")?.ino, ino);
    }
    tree.insert(if path.is_empty() { "/".into() } else { path }, seen);
    Ok(())
}

#[derive(Clone, Debug)]
pub struct Node {
    pub mode: u32,
    pub links: u32,
    pub data: Vec<u8>,
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    pub names: BTreeMap<String, usize>,
    pub accessed: Option<i64>,
}

/// The reference file system. Node 0 is the root.
#[derive(Clone, Debug)]
pub struct Model {
    pub nodes: Vec<Node>,
}

pub const DIR: u32 = 0o040_000;
pub const FILE: u32 = 0o100_000;
pub const LINK: u32 = 0o120_000;
pub const DEVICE: u32 = 0o020_000;

impl Model {
    pub fn new() -> Self {
        Self { nodes: vec![Node::new(DIR | 0o755)] }
    }

    pub fn tree(&self) -> Tree {
        let mut tree = Tree::new();
        self.tree_from(0, String::new(), &mut tree);
        tree
    }

    fn tree_from(&self, node: usize, path: String, tree: &mut Tree) {
        let n = &self.nodes[node];
        for (name, child) in &n.names {
            self.tree_from(*child, format!("{path}/{name}"), tree);
        }
        let dirs = n.names.values().filter(|child| self.is_dir(**child)).count() as u32;
        let links = if self.is_dir(node) { 2 + dirs } else { n.links };
        let seen = Seen { mode: n.mode, links, data: n.data.clone(), xattrs: n.xattrs.clone(), accessed: n.accessed };
        tree.insert(if path.is_empty() { "/".into() } else { path }, seen);
    }

    /// The nodes that have a name, and one path of each.
    pub fn inodes(&self) -> BTreeMap<usize, String> {
        let (mut found, mut todo) = (BTreeMap::new(), vec![(0, String::from("/"))]);
        while let Some((node, path)) = todo.pop() {
            todo.extend(self.nodes[node].names.iter().map(|(name, child)| (*child, format!("{path}/{name}"))));
            found.insert(node, path);
        }
        found
    }

    pub fn is_dir(&self, node: usize) -> bool {
        self.nodes[node].mode & 0o170_000 == DIR
    }

    pub fn find(&self, path: &str) -> Result<usize, i32> {
        path.split('/').filter(|part| !part.is_empty()).try_fold(0, |at, part| {
            if !self.is_dir(at) {
                return Err(libc::ENOTDIR);
            }
            self.nodes[at].names.get(part).copied().ok_or(libc::ENOENT)
        })
    }

    /// The directory of a path and the last name.
    pub fn parent<'p>(&self, path: &'p str) -> Result<(usize, &'p str), i32> {
        let (dir, name) = path.rsplit_once('/').unwrap();
        let dir = self.find(dir)?;
        if self.is_dir(dir) { Ok((dir, name)) } else { Err(libc::ENOTDIR) }
    }

    pub fn add(&mut self, path: &str, mut node: Node) -> Result<(), i32> {
        let (dir, name) = self.parent(path)?;
        if node.mode & 0o170_000 == DIR {
            node.mode |= self.nodes[dir].mode & 0o2000; // a set-group-ID directory hands the bit on
        }
        if self.nodes[dir].names.contains_key(name) {
            return Err(libc::EEXIST);
        }
        self.nodes.push(node);
        let child = self.nodes.len() - 1;
        self.nodes[dir].names.insert(name.into(), child);
        Ok(())
    }

    /// Whether `below` is `node` or in it.
    pub fn is_below(&self, node: usize, below: usize) -> bool {
        node == below || self.nodes[node].names.values().any(|child| self.is_below(*child, below))
    }
}

impl Node {
    pub fn new(mode: u32) -> Self {
        Self { mode, links: 1, data: Vec::new(), xattrs: BTreeMap::new(), names: BTreeMap::new(), accessed: None }
    }
}

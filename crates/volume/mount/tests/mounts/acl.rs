//! Access control lists, as setfacl and getfacl set and show them and as the kernel applies them.

use std::fs;
use std::io::Error;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use mount::Cache;
use rustix::fs::XattrFlags;
use testing::{Case, cases, mounting};

use crate::harness::Mount;
use crate::semantics::as_user;
use crate::testers::tool_of;

pub const CASES: &[Case] = cases![[mounting(), tool_of("setfacl", "testers")]
    access_control_lists_are_kept_inherited_and_checked,
    the_kernel_remembers_that_there_is_no_list,
];

/// The output of a shell script that root runs in a directory, with a umask that hides everything
/// from others.
fn as_root(dir: &Path, script: &str) -> String {
    let out = Command::new("sh").args(["-ec", &format!("umask 077; {script}")]).current_dir(dir).output().unwrap();
    assert!(out.status.success(), "{script}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap()
}

fn access_control_lists_are_kept_inherited_and_checked() {
    let mut mount = Mount::new(Cache::Kernel, 16);
    let mode = |mount: &Mount, name: &str| fs::metadata(mount.path(name)).unwrap().permissions().mode() & 0o7777;
    let may = |mount: &Mount, script: &str| as_user(mount.dir(), script).status.success();
    let root = |mount: &Mount, script: &str| as_root(mount.dir(), script);

    // The mode's group bits are the mask, which a user's entry is subject to.
    root(&mount, "echo secret >f; chmod 600 f");
    assert!(!may(&mount, "cat f"));
    root(&mount, "setfacl -m u:12345:rw f");
    assert_eq!(mode(&mount, "f"), 0o660);
    assert!(may(&mount, "cat f && echo more >>f"));
    root(&mount, "chmod 640 f");
    assert!(may(&mount, "cat f") && !may(&mount, "echo more >>f"));
    let shown = root(&mount, "getfacl -cn f");
    assert!(shown.contains("user:12345:rw-") && shown.contains("#effective:r--"), "{shown}");
    root(&mount, "chmod 600 f");
    assert!(!may(&mount, "cat f"));
    // One that the mode says whole is not kept; removing it again is no error.
    root(&mount, "setfacl -b f; setfacl -b f; setfacl -m g::r f");
    assert_eq!(mode(&mount, "f"), 0o640);
    assert!(!root(&mount, "getfattr -m - f 2>/dev/null || true").contains("posix_acl"));

    // A default list takes the umask's place; links and removed lists get none.
    root(&mount, "mkdir d; echo x >d/before; setfacl -m d:u:12345:rwx d; chmod 711 d");
    root(&mount, "echo x >d/f; mkdir d/d; ln -s f d/s; mkfifo d/p; touch d/d/g");
    assert_eq!((mode(&mount, "d/before"), mode(&mount, "d/f"), mode(&mount, "d/d")), (0o600, 0o660, 0o770));
    assert_eq!((mode(&mount, "d/p"), mode(&mount, "d/d/g")), (0o660, 0o660));
    assert!(may(&mount, "cat d/f d/s && touch d/d/new") && !may(&mount, "cat d/before"));
    assert_eq!(root(&mount, "getfacl -cn d | grep ^default"), root(&mount, "getfacl -cn d/d | grep ^default"));
    let list = b"\x02\0\0\0\x01\0\x06\0\xff\xff\xff\xff";
    for list in [&list[..], b"", b"\x02"] {
        let set = rustix::fs::setxattr(mount.path("f"), "system.posix_acl_access", list, XattrFlags::empty());
        let refused = set.map_err(Error::from).map_err(|error| error.raw_os_error());
        // An empty value removes the list, as on other file systems.
        assert_eq!(refused, if list.is_empty() { Ok(()) } else { Err(Some(libc::EINVAL)) }, "{list:?}");
    }
    root(&mount, "setfacl -k d; touch d/after");
    assert_eq!(mode(&mount, "d/after"), 0o600);

    // Somebody outside of the file's group who changes the list loses the set-group-ID bit.
    root(&mount, "echo x >g; chown 12345:0 g; chmod 2755 g");
    assert!(may(&mount, "setfacl -m u:1:r g"));
    assert_eq!(mode(&mount, "g") & 0o2000, 0);

    mount.kill();
    mount.recover();
    assert!(may(&mount, "cat d/f && touch d/d/later"));
    let shown = root(&mount, "getfacl -cn d/f");
    assert!(shown.contains("user:12345:rwx") && shown.contains("#effective:rw-"), "{shown}");
    mount.end();
}

/// Each question was a request before lists were supported. A listing makes the kernel forget the
/// lists of what it lists (`fuse_direntplus_link`), so `ls -l` still asks once for each file.
fn the_kernel_remembers_that_there_is_no_list() {
    let mount = Mount::new(Cache::Kernel, 16);
    let names: Vec<_> = (0..100).map(|name| name.to_string()).collect();
    for name in &names {
        fs::write(mount.path(name), "x").unwrap();
    }
    let ask = || {
        let before = mount.calls()[1];
        let shown = as_root(mount.dir(), &format!("getfacl -n {}", names.join(" ")));
        assert_eq!(shown.matches("user::").count(), 100);
        mount.calls()[1] - before
    };
    let first = ask();
    let second = ask();
    assert!(second < 50, "{first} answers, then {second}");
    mount.end();
}

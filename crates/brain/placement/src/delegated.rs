//! What the owner of a control group chooses for it, without root's file.
//!
//! **Problem.** Who runs services of his own should not need root to have them moved, and nobody
//! may in this way have anything of another moved.
//!
//! **Approach.** The value of [`ATTRIBUTE`] of the group's directory is the name of a policy. It
//! counts if root lists the policy, and if the directory's owner is the real and the effective user
//! of every process in the group.
//!
//! **Limits.** It counts for the processes of this group, and of none below it.

use std::sync::Arc;

/// The extended attribute of a directory of a control group (v2).
pub const ATTRIBUTE: &str = "user.homenode.policy";
/// Longest value, bytes: more than any policy's name.
pub const LONGEST: usize = 32;

/// The rule of a policy that owners may choose. No rule of root's file has a name like that.
pub fn rule(policy: &str) -> String {
    format!("delegated {policy}")
}

/// The policy that an owner has chosen, of those that he may.
///
/// # Errors
///
/// Why this is none of them.
pub fn policy(value: &[u8], may: &[Arc<str>]) -> Result<Arc<str>, String> {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_".contains(byte);
    let name = std::str::from_utf8(value).ok().filter(|name| name.len() <= LONGEST && value.iter().all(plain));
    let name = name.filter(|name| !name.is_empty()).ok_or("the value is no name of a policy")?;
    let listed = may.iter().find(|policy| ***policy == *name).cloned();
    listed.ok_or_else(|| match crate::POLICIES.iter().any(|(known, _)| *known == name) {
        true => format!("[delegate] does not list policy {name}"),
        false => format!("no policy is called {name}"),
    })
}

/// Why the choice does not count where the real or the effective user of a process in the group is
/// not the directory's owner. Everybody may read it, so it names neither.
pub fn foreign(owner: u32, users: [u32; 2]) -> Option<String> {
    let why = "a process in it is not of the user who owns its directory";
    (users != [owner; 2]).then(|| why.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_listed_policy_is_chosen() {
        let may = ["nthread".into(), "arc".into()];
        assert_eq!(policy(b"nthread", &may).as_deref(), Ok("nthread"));
        for (value, why) in [
            (&b"dragonfly"[..], "[delegate] does not list policy dragonfly"),
            (b"observe", "no policy is called observe"),
            (b"numad", "no policy is called numad"),
            (b"", "no name of a policy"),
            (b"nthread\n", "no name of a policy"),
            (b"nth\x1b[31m", "no name of a policy"),
            (b"\xff\xfe", "no name of a policy"),
            (&[b'a'; LONGEST + 1], "no name of a policy"),
        ] {
            let refused = policy(value, &may).unwrap_err();
            assert!(refused.contains(why), "{value:?}: {refused}");
        }
        assert!(policy(b"nthread", &[]).is_err());
        assert!(crate::POLICIES.iter().all(|(name, _)| name.len() <= LONGEST));
    }

    #[test]
    fn both_users_of_a_process_have_to_be_the_owner() {
        assert_eq!(foreign(7, [7, 7]), None);
        for users in [[0, 0], [7, 0], [0, 7], [8, 8]] {
            assert!(foreign(7, users).is_some(), "{users:?}");
        }
        assert!(foreign(0, [7, 7]).is_some(), "root owns the directory, not the process");
    }
}

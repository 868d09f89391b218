//! The processor: its name, its caches, and whether it is a virtual one.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::Path;

use topology::Node;

use crate::threads::field;

/// Its name, as `/proc/cpuinfo` has it: `model name`, or the fields by which ARM tells models
/// apart.
pub fn name(proc_root: &Path) -> Option<String> {
    let text = fs::read_to_string(proc_root.join("cpuinfo")).ok()?;
    name_in(&text)
}

fn name_in(cpuinfo: &str) -> Option<String> {
    let of = |wanted: &str| {
        cpuinfo
            .lines()
            .filter_map(|line| line.split_once(':'))
            .find(|(name, _)| name.trim() == wanted)
            .map(|f| f.1.trim())
    };
    let arm = || Some(format!("implementer {} part {}", of("CPU implementer")?, of("CPU part")?));
    of("model name").or_else(|| of("cpu")).map(str::to_owned).or_else(arm)
}

/// The hypervisor below this kernel, such as `kvm`, `tcg` (QEMU's emulation), `xen`, or `unknown`;
/// `None` if there seems to be none.
pub fn hypervisor(proc_root: &Path, sys_root: &Path) -> Option<String> {
    if let Ok(kind) = fs::read_to_string(sys_root.join("hypervisor/type")) {
        return Some(kind.trim().to_owned());
    }
    let cpuinfo = fs::read_to_string(proc_root.join("cpuinfo")).ok()?;
    let flags = cpuinfo.lines().find_map(|line| line.strip_prefix("flags"))?;
    flags.split_whitespace().any(|flag| flag == "hypervisor").then(|| signature().unwrap_or("unknown").to_owned())
}

/// What a hypervisor calls itself.
#[cfg(target_arch = "x86_64")]
fn signature() -> Option<&'static str> {
    let leaf = std::arch::x86_64::__cpuid(0x4000_0000);
    let text: Vec<u8> = [leaf.ebx, leaf.ecx, leaf.edx].iter().flat_map(|word| word.to_le_bytes()).collect();
    match text.as_slice() {
        b"KVMKVMKVM\0\0\0" => Some("kvm"),
        b"TCGTCGTCGTCG" => Some("tcg"),
        b"Microsoft Hv" => Some("hyper-v"),
        b"VMwareVMware" => Some("vmware"),
        b"XenVMMXenVMM" => Some("xen"),
        b"bhyve bhyve " => Some("bhyve"),
        _ => None,
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn signature() -> Option<&'static str> {
    None
}

/// Bytes of the last-level caches of a node's CPUs, all of them together; 0 if unknown.
pub fn cache_bytes(sys_root: &Path, node: &Node) -> u64 {
    let mut seen = BTreeSet::new();
    let mut bytes = 0;
    for cpu in node.cpus.iter() {
        let dir = sys_root.join(format!("devices/system/cpu/cpu{cpu}/cache"));
        let read = |index: u32, file: &str| fs::read_to_string(dir.join(format!("index{index}/{file}"))).ok();
        let level = |index: &u32| read(*index, "level").and_then(|level| level.trim().parse::<u32>().ok());
        let Some(last) = (0..8).filter(|index| level(index).is_some()).max_by_key(level) else { continue };
        let size = read(last, "size").and_then(|size| kib(&size)).unwrap_or(0);
        if seen.insert(read(last, "shared_cpu_list").unwrap_or_else(|| cpu.to_string())) {
            bytes += size;
        }
    }
    bytes
}

/// `32768K` in bytes.
fn kib(text: &str) -> Option<u64> {
    text.trim().strip_suffix('K')?.parse::<u64>().ok()?.checked_mul(1024)
}

/// The kernel's list of what this thread may use (`Cpus_allowed_list`, `Mems_allowed_list`);
/// `None` on a kernel without cpusets.
///
/// # Errors
///
/// It cannot be read, or is no list.
pub fn allowed(proc_root: &Path, what: &str) -> io::Result<Option<topology::CpuSet>> {
    let status = fs::read_to_string(proc_root.join("thread-self/status"))?;
    field(&status, what).map(|list| list.trim().parse().map_err(io::Error::other)).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;
    use topology::NodeId;

    #[test]
    fn processors_have_names() {
        let intel = "processor\t: 0\nvendor_id\t: GenuineIntel\nmodel\t\t: 85\nmodel name\t: Intel(R) Xeon(R)\n";
        assert_eq!(name_in(intel).as_deref(), Some("Intel(R) Xeon(R)"));
        let arm = "processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd0c\n";
        assert_eq!(name_in(arm).as_deref(), Some("implementer 0x41 part 0xd0c"));
        assert_eq!(name_in("processor\t: 0\n"), None);
    }

    #[test]
    fn a_cache_that_cpus_share_counts_once() {
        let dir = tempfile::tempdir().unwrap();
        for (cpu, index, level, size, shared) in
            [(0, 0, 1, "32K", "0"), (0, 3, 3, "8192K", "0-1"), (1, 3, 3, "8192K", "0-1"), (2, 3, 3, "8192K", "2-3")]
        {
            let at = dir.path().join(format!("devices/system/cpu/cpu{cpu}/cache/index{index}"));
            fs::create_dir_all(&at).unwrap();
            for (file, text) in
                [("level", level.to_string()), ("size", size.to_owned()), ("shared_cpu_list", shared.to_owned())]
            {
                fs::write(at.join(file), text + "\n").unwrap();
            }
        }
        let node = |cpus: &[u32]| Node::new(NodeId(0), cpus.iter().copied().collect(), 1);
        assert_eq!(cache_bytes(dir.path(), &node(&[0, 1])), 8 << 20);
        assert_eq!(cache_bytes(dir.path(), &node(&[0, 1, 2])), 16 << 20);
        assert_eq!(cache_bytes(dir.path(), &node(&[7])), 0);
    }

    #[test]
    fn a_hypervisor_shows() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("cpuinfo"), "flags\t\t: fpu vme\n").unwrap();
        assert_eq!(hypervisor(dir.path(), dir.path()), None);
        fs::write(dir.path().join("cpuinfo"), "flags\t\t: fpu hypervisor\n").unwrap();
        assert!(hypervisor(dir.path(), dir.path()).is_some());
        fs::create_dir(dir.path().join("hypervisor")).unwrap();
        fs::write(dir.path().join("hypervisor/type"), "xen\n").unwrap();
        assert_eq!(hypervisor(dir.path(), dir.path()).as_deref(), Some("xen"));
    }
}

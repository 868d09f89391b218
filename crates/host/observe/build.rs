//! Compiles the BPF programs, generates their skeletons, and gives the constants and structures of
//! their interface to Rust.
//!
//! Needs clang with the BPF target: `$CLANG`, or the first of `clang-19` … `clang` on the PATH. The
//! programs carry their own small kernel structures (CO-RE), so neither kernel headers nor a
//! `vmlinux.h` are needed.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use libbpf_cargo::SkeletonBuilder;

/// Newest first: any of them compiles the programs, 19 is what is tested.
const CLANGS: [&str; 8] = ["clang-19", "clang", "clang-21", "clang-20", "clang-18", "clang-17", "clang-16", "clang-15"];

fn main() {
    if let Err(error) = build() {
        println!("cargo::error={error}");
        std::process::exit(1);
    }
}

fn build() -> Result<(), String> {
    println!("cargo::rerun-if-env-changed=CLANG");
    println!("cargo::rerun-if-changed=src/bpf");
    link_for_libelf();
    let variable = |name: &str| env::var_os(name).ok_or_else(|| format!("{name} is not set: run by cargo only"));
    let sources = PathBuf::from(variable("CARGO_MANIFEST_DIR")?).join("src/bpf");
    let out = PathBuf::from(variable("OUT_DIR")?);
    let clang = clang()?;
    let arch = match env::var("CARGO_CFG_TARGET_ARCH").as_deref() {
        Ok("x86_64") => "x86",
        Ok("aarch64") => "arm64",
        other => return Err(format!("the BPF programs are not written for this architecture: {other:?}")),
    };
    let mut arguments = vec![OsString::from(format!("-D__TARGET_ARCH_{arch}")), "-Wall".into(), "-Wextra".into()];
    arguments.extend(["-Werror".into(), "-Wno-unused-parameter".into(), "-mcpu=v3".into()]);
    // The headers of the libbpf that libbpf-sys builds.
    let mut include = OsString::from("-I");
    include.push(variable("DEP_BPF_INCLUDE")?);
    arguments.push(include);
    // The objects say where their sources are; no path of the machine that built them.
    let mut map = OsString::from("-ffile-prefix-map=");
    map.push(variable("CARGO_MANIFEST_DIR")?);
    map.push("=observe");
    arguments.push(map);
    interface(&sources.join("intf.h"), &out.join("intf.rs"))?;
    for name in ["observe", "probe_run", "checks", "hotness", "who"] {
        SkeletonBuilder::new()
            .source(sources.join(format!("{name}.bpf.c")))
            .clang(&clang)
            .clang_args(&arguments)
            .build_and_generate(out.join(format!("{name}.skel.rs")))
            .map_err(|error| format!("{name}.bpf.c does not compile with {}: {error:#}", clang.to_string_lossy()))?;
    }
    Ok(())
}

/// What libelf, which is linked in, asks for: zstd, from elfutils 0.189 on Debian's, and what its
/// archive lacks in 0.192 (`libelf.c`). All of both is taken, because the linker comes to libelf
/// later; it drops what nobody uses.
fn link_for_libelf() {
    println!("cargo::rerun-if-env-changed=LIBBPF_SYS_LIBRARY_PATH");
    println!("cargo::rerun-if-changed=src/libelf.c");
    let path = env::var("LIBBPF_SYS_LIBRARY_PATH").unwrap_or_default();
    let library = path.split(':').map(|dir| Path::new(dir).join("libelf.a")).find(|file| file.exists());
    let Some((bytes, file)) = library.and_then(|file| Some((fs::read(&file).ok()?, file))) else { return };
    let has = |text: &[u8]| bytes.windows(text.len()).any(|at| at == text);
    if has(b"ZSTD_") {
        println!("cargo::rustc-link-search=native={}", file.with_file_name("").display());
        println!("cargo::rustc-link-lib=static:+whole-archive=zstd");
    }
    if has(b"eu_search_tree_init") && !has(b"eu-search.o") {
        cc::Build::new().file("src/libelf.c").link_lib_modifier("+whole-archive").compile("homenode_libelf");
    }
}

/// Writes each constant of the interface as one of Rust, and each structure as a `record!`.
fn interface(header: &Path, to: &Path) -> Result<(), String> {
    let text = fs::read_to_string(header).map_err(|e| format!("{}: {e}", header.display()))?;
    let mut rust = String::new();
    let mut inside = false;
    for line in text.lines() {
        let line = line.split("/*").next().unwrap_or_default().trim();
        let unknown = || format!("{}: of an unknown form: {line}", header.display());
        if let Some(name) = line.strip_prefix("struct ").and_then(|rest| rest.strip_suffix(" {")) {
            inside = true;
            rust += &format!("record! {{ {name} {{\n");
        } else if inside && line == "};" {
            inside = false;
            rust += "} }\n";
        } else if inside && !line.is_empty() {
            rust += &fields(line).ok_or_else(unknown)?;
        } else if let Some((name, value)) = line.strip_prefix("#define ").and_then(|rest| rest.split_once(' ')) {
            rust += &constant(name, value.trim()).ok_or_else(unknown)?;
        }
    }
    fs::write(to, rust).map_err(|e| format!("{}: {e}", to.display()))
}

/// The fields that a line declares: `u32 tid, tgid;`, `char comm[COMM_LEN];`,
/// `struct usage usage;`.
fn fields(line: &str) -> Option<String> {
    let line = line.strip_suffix(';')?;
    let (of, names) = line.strip_prefix("struct ").unwrap_or(line).split_once(' ')?;
    let of = match of {
        "s64" => "i64",
        "char" => "u8",
        same => same,
    };
    let field = |name: &str| match name.trim().split_once('[') {
        Some((name, length)) => format!("{name}: [{of}; {} as usize],\n", length.trim_end_matches(']')),
        None => format!("{}: {of},\n", name.trim()),
    };
    Some(names.split(',').map(field).collect())
}

/// A number, `(~0U)`, `(~0ULL)`, `(1U << SHIFT)`, `(1ULL << SHIFT)`, or a number of 64 bits in
/// hexadecimal.
fn constant(name: &str, value: &str) -> Option<String> {
    let (of, value) = match value {
        "(~0U)" => ("u32", "u32::MAX".to_owned()),
        "(~0ULL)" => ("u64", "u64::MAX".to_owned()),
        shift if shift.starts_with("(1U << ") => ("u32", shift.replace("1U", "1").replace(['(', ')'], "")),
        shift if shift.starts_with("(1ULL << ") => ("u64", shift.replace("1ULL", "1").replace(['(', ')'], "")),
        hex if hex.starts_with("0x") && hex.ends_with("ULL") => ("u64", hex.replace("ULL", "")),
        number if number.parse::<u32>().is_ok() => ("u32", number.to_owned()),
        _ => return None,
    };
    Some(format!("pub const {name}: {of} = {value};\n"))
}

fn clang() -> Result<OsString, String> {
    if let Some(clang) = env::var_os("CLANG") {
        return Ok(clang);
    }
    let found = |name: &&&str| Command::new(name).arg("--version").output().is_ok_and(|output| output.status.success());
    let clang = CLANGS.iter().find(found).ok_or(
        "clang is missing: it compiles the BPF programs. Install the package `clang-19` (or `clang`), or set CLANG to one",
    )?;
    Ok(OsString::from(*clang))
}

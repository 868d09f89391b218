//! Compiles the BPF programs and generates their skeletons.
//!
//! Needs clang with the BPF target: `$CLANG`, or the first of `clang-19` … `clang` on the PATH. The programs carry their own
//! small kernel structures (CO-RE), so neither kernel headers nor a `vmlinux.h` are needed.

use std::env;
use std::ffi::OsString;
use std::path::PathBuf;
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
    for name in ["observe", "trial", "checks", "hotness"] {
        SkeletonBuilder::new()
            .source(sources.join(format!("{name}.bpf.c")))
            .clang(&clang)
            .clang_args(&arguments)
            .build_and_generate(out.join(format!("{name}.skel.rs")))
            .map_err(|error| format!("{name}.bpf.c does not compile with {}: {error:#}", clang.to_string_lossy()))?;
    }
    Ok(())
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

//! Chooses the clock of the laboratory: `fs::sync`.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cfg=virtual_time");
}

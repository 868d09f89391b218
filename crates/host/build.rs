//! Compiles the BPF programs.

fn main() {}

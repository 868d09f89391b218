// SPDX-License-Identifier: MIT OR Apache-2.0
//
// Two functions that libelf.a of elfutils 0.192 (Debian 13) calls and does not contain
// (sourceware.org/bugzilla, 32293): of a tree of the pieces of a file that elf_getdata_rawchunk
// handed out. libbpf never calls that, so the tree stays empty: an Elf begins with zeroes.

__attribute__((weak)) void eu_search_tree_init(void *tree, int (*compare)(const void *, const void *))
{
    (void)tree, (void)compare;
}

__attribute__((weak)) void eu_search_tree_fini(void *tree, void (*free_node)(void *))
{
    (void)tree, (void)free_node;
}

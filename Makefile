# Every target installs what it lacks (tools/setup) and says so; a second run is quick.
#
# Variables: SECONDS for fuzz, DESTDIR and PREFIX for install (default /usr/local), KVM=1 to run the virtual machines with KVM.

SHELL := /bin/bash
PREFIX ?= /usr/local
export PREFIX DESTDIR KVM

.DEFAULT_GOAL := help
.PHONY: help demo check test test-long fuzz test-zfs bench lint install uninstall packages test-packages test-release release

help: ## This list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 18

demo: ## Its moves in five acts: one here, four on two nodes, in a virtual machine if need be; ten minutes, 6 GB
	@tools/demo

check: ## Before each commit: lint, and all tests that need no virtual machine
	@tools/check

test: ## All tests but the long ones, also those in NUMA virtual machines (20 minutes)
	@tools/test

test-long: ## All tests at full length, with OpenZFS and real programs: before a release (two hours)
	@tools/test-long

fuzz: ## Each parser with inputs that are nearly right, for SECONDS (60) in all; crashes become tests
	@HOMENODE_FUZZ_SECONDS=$$(($(or $(SECONDS),60) / 6)) cargo test -q -p homenode --test fuzz -- --nocapture --test-threads 1

test-zfs: ## Tests with OpenZFS in a virtual machine (builds OpenZFS: 5 to 25 minutes, once)
	@tools/test-zfs

bench: ## Measurements against peers, side by side; results in bench/
	@tools/bench

lint: ## Formatting, clippy, shellcheck
	@tools/lint

install: ## The command, its man pages, shell completions and a systemd unit (not enabled)
	@tools/install

uninstall: ## Removes what make install put there, after all affinities are back
	@tools/install --uninstall

packages: ## deb, rpm and a tarball, under target/packages
	@tools/package

test-packages: ## Packages: install, upgrade, purge, in roots of Debian and a booted machine (5 minutes)
	@tools/test-packages

test-release: ## Packages of the release profile: as test-packages, sizes, and two builds that are equal (30 minutes)
	@tools/test-release

release: ## All that a release takes, up to the point where something would leave this machine
	@tools/release

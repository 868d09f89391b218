# Every target installs what it lacks (tools/setup) and says what it does; a second run is quick.
#
# Variables: DESTDIR and PREFIX for install (default /usr/local), KVM=1 to run the virtual machines with KVM.

SHELL := /bin/bash
PREFIX ?= /usr/local
export PREFIX DESTDIR KVM

.DEFAULT_GOAL := help
.PHONY: help demo test bench lint install

help: ## This list
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 18

demo: ## fio without and with homenode: here if there are two NUMA nodes, else in a virtual machine
	@tools/demo

test: ## All tests, those in NUMA virtual machines included
	@tools/test

bench: ## Measurements against peers, side by side; results in bench/
	@tools/bench

lint: ## Formatting, clippy, shellcheck
	@tools/lint

install: ## The command, its man pages, shell completions and a systemd unit (not enabled)
	@tools/install

#!/usr/bin/env python3
"""NThread's step 1 (NThread_rl): each thread moves to the node it reads most from.

The same plans as `--policy nthread-rl`, in another language: a start for a policy of your own.
Try it: homenode replay windows.jsonl --policy exec:examples/policies/nthread_rl.py
"""
import json
import sys

MARGIN = 200e6           # lead in bytes a second that makes a node the target (NThread III-A)
MIN_BYTES = 4 * 1024**2  # threads below this are left alone (NThread IV)


def text(size):
    """Bytes in decimal units with one decimal."""
    tenth, unit = next((t, u) for t, u, most in [(10**5, "MB", 999_950_000), (10**8, "GB", 999_950_000_000),
                                                 (10**11, "TB", float("inf"))] if size < most)
    tenths = (size + tenth // 2) // tenth
    return f"{tenths // 10}.{tenths % 10} {unit}"


def nearest(nodes, home, thread):
    """The single nearest node with CPUs where the thread may run."""
    near = {}
    for node in set(thread["allowed_nodes"]):
        if node in nodes and nodes[node]["cpus"]:
            near.setdefault(nodes[node]["distance"].get(str(home), 2**32 - 1), []).append(node)
    best = near[min(near)] if near else []
    return best[0] if len(best) == 1 else None


def target(nodes, thread, margin):
    """The node that the thread should run on, and the node of its data, if one leads by the margin."""
    reads = sorted(((size, -int(node)) for node, size in thread["read_bytes"].items()), reverse=True)
    if not reads or reads[0][0] == 0:
        return None, None
    home, second = -reads[0][1], reads[1][0] if len(reads) > 1 else 0
    if reads[0][0] == second or reads[0][0] - second < margin or home not in nodes:
        return None, home
    if not nodes[home]["cpus"]:
        return nearest(nodes, home, thread), home
    return (home if home in thread["allowed_nodes"] else None), home


def decide(nodes, window):
    """The moves of one window, those that gain most first."""
    moves = []
    for thread in window["threads"]:
        reads, now = thread["read_bytes"], thread["node"]
        total = sum(reads.values())
        if total + sum(thread["write_bytes"].values()) < MIN_BYTES or "pinned" in thread or now not in nodes:
            continue
        to, home = target(nodes, thread, MARGIN * window["window_s"])
        if to is None or to == now:
            continue
        why = f"{text(reads[str(home)])} of {text(total)} read from node {home}"
        if to != home:
            why += f", which has no CPUs; node {to} is the nearest"
        move = {"kind": "thread", "tid": thread["tid"], "pid": thread["pid"], "from": now, "to": to,
                "reason": "read_locality", "why": why}
        if "start_ns" in thread:
            move["start_ns"] = thread["start_ns"]
        moves.append((-max(0, reads.get(str(to), 0) - reads.get(str(now), 0)), thread["tid"], move))
    return [move for _, _, move in sorted(moves, key=lambda move: move[:2])]


print(json.dumps({"homenode": 1, "name": "nthread-rl.py"}), flush=True)
sys.stdin.readline()  # The topology: each window has the nodes, too.
for line in sys.stdin:
    window = json.loads(line)
    nodes = {node["id"]: node for node in window["nodes"]}
    print(json.dumps({"version": 2, "policy": "nthread-rl.py", "moves": decide(nodes, window)}), flush=True)

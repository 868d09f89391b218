#!/usr/bin/env python3
"""Each thread to its data, as long as a CPU of that node is left for it; those that read most choose first."""
import json
import sys

print(json.dumps({"homenode": 1, "name": "spread"}), flush=True)
json.loads(sys.stdin.readline())
for line in sys.stdin:
    window = json.loads(line)
    left = {node["id"]: len(node["cpus"]) for node in window["nodes"]}
    moves = []
    for thread in sorted(window["threads"], key=lambda thread: -sum(thread["read_bytes"].values())):
        reads, may = thread["read_bytes"], [n for n in thread["allowed_nodes"] if left.get(n, 0) > 0]
        to = max(may, key=lambda node: (reads.get(str(node), 0), node == thread["node"]), default=thread["node"])
        left[to] = left.get(to, 0) - 1
        if to != thread["node"] and "pinned" not in thread:
            moves.append({"kind": "thread", "tid": thread["tid"], "pid": thread["pid"], "start_ns": thread.get("start_ns"),
                          "from": thread["node"], "to": to, "reason": "external", "why": "a CPU is free beside its data"})
    print(json.dumps({"version": 2, "policy": "spread", "moves": moves}), flush=True)

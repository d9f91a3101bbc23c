#!/usr/bin/env python3
"""Hit rates of a trace by capacity, the slow and plain way: what prefix-sim is held to.

usage: trace_oracle.py TRACE CAPACITY...        prints one line a policy and capacity
       trace_oracle.py --trim TRACE EVERY OUT   writes each EVERY-th session (or chain) to OUT

It knows nothing of trees: a cache is a dictionary from block to a key, the block with the
least key goes. A request hits the longest run of its first blocks that are in the dictionary;
then all its blocks get (or keep) a key; then blocks go, one by one, each found by looking at
all of them. Ties: the deepest block goes first.

  lru       key: the number of the last request that used the block
  fifo      key: the number of the request that brought it in (not only leaves go, so that
            blocks may lie behind a gap, where they help nobody until it is filled)
  leaf-fifo the same among the blocks that no cached block stands behind
  belady    key: the number of the next request that will use it, the farthest goes
"""
import json
import sys


def read(path):
    with open(path) as f:
        return [json.loads(line)["hash_ids"] for line in f if line.strip()]


def parents(requests):
    up = {}
    for ids in requests:
        for i, b in enumerate(ids):
            assert up.setdefault(b, ids[i - 1] if i else None) == (ids[i - 1] if i else None)
    return up


def next_uses(requests):
    after, out = {}, [None] * len(requests)
    for i in range(len(requests) - 1, -1, -1):
        out[i] = [after.get(b, float("inf")) for b in requests[i]]
        for b in requests[i]:
            after[b] = i
    return out


def run(requests, policy, capacity):
    up = parents(requests)
    nexts = next_uses(requests)
    depth, key, kids = {}, {}, {}
    hits = refs = 0
    for now, ids in enumerate(requests):
        n = 0
        while n < len(ids) and ids[n] in key:
            n += 1
        hits += n
        refs += len(ids)
        for i, b in enumerate(ids):
            depth[b] = i
            if b not in key:
                kids[up[b]] = kids.get(up[b], 0) + 1
            if policy == "lru":
                key[b] = now
            elif policy == "belady":
                key[b] = -nexts[now][i]
            else:
                key.setdefault(b, now)
        while len(key) > capacity:
            free = (b for b in key if policy != "leaf-fifo" or kids.get(b, 0) == 0)
            b = min(free, key=lambda b: (key[b], -depth[b]))
            del key[b]
            kids[up[b]] -= 1
    return hits, refs


def trim(path, every, out):
    """Keeps the requests whose first block is one of each EVERY-th that appear."""
    first = {}
    with open(path) as f, open(out, "w") as g:
        for line in f:
            row = json.loads(line)
            chain = row.get("session", row["hash_ids"][0])
            if first.setdefault(chain, len(first)) % every == 0:
                g.write(json.dumps({"output_length": row.get("output_length", 0),
                                    "hash_ids": row["hash_ids"]}, separators=(",", ":")) + "\n")


def main():
    if sys.argv[1] == "--trim":
        trim(sys.argv[2], int(sys.argv[3]), sys.argv[4])
        return
    requests = read(sys.argv[1])
    for capacity in map(int, sys.argv[2:]):
        for policy in ("lru", "fifo", "leaf-fifo", "belady"):
            hits, refs = run(requests, policy, capacity)
            print(policy, capacity, hits, refs, flush=True)


if __name__ == "__main__":
    main()

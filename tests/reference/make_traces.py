#!/usr/bin/env python3
"""Writes made-up traces of several kinds, to see that a policy is not tuned to the real ones.

usage: make_traces.py FOLDER     FOLDER/KIND.jsonl, for prefix-sim

Everything is drawn from fixed seeds. chat: conversations over a few system prompts, the next
turn after a log-normal pause, and the last block of a prompt never comes back; rag: documents
of Zipf-like popularity behind one system prompt; agents: growing histories that take turns;
mixed, drift: rag and chat at once, and one after the other; loop: documents in a circle.
"""
import heapq
import itertools
import json
import math
import random
import sys


class Blocks:
    def __init__(self, seed):
        self.rng, self.ids = random.Random(seed), itertools.count(seed * 10**7 + 1)

    def new(self, n):
        return list(itertools.islice(self.ids, n))


def chat(seed, n=4000, goes_on=0.75, pause=60, systems=3):
    b = Blocks(seed)
    r, t, rows, queue = b.rng, 0, [], []
    prompts = [b.new(r.randint(1, 8)) for _ in range(systems)]
    for c in itertools.count():
        t += r.expovariate(0.25)
        while queue and queue[0][0] <= t:
            now, conv, p = heapq.heappop(queue)
            p = p + b.new(1 + int(r.lognormvariate(0.7, 0.8)))
            out = int(r.lognormvariate(4.5, 1)) + 1
            rows.append((now, p + b.new(1), out))
            if len(rows) == n:
                return rows
            if r.random() < goes_on:
                then = now + r.lognormvariate(math.log(pause), 1.2)
                heapq.heappush(queue, (then, conv, p + b.new(out // 128)))
        heapq.heappush(queue, (t, c, r.choice(prompts)))


def rag(seed, n=4000, documents=800):
    b, docs, rows = Blocks(seed), {}, []
    system = b.new(5)
    for i in range(n):
        d = min(documents - 1, int(b.rng.paretovariate(0.9)))
        if d not in docs:
            docs[d] = b.new(b.rng.randint(5, 40))
        question = b.new(b.rng.randint(1, 3))
        rows.append((i, system + docs[d] + question, int(b.rng.lognormvariate(4, 1)) + 1))
    return rows


def agents(seed, n=3000, at_once=20):
    b, rows, running = Blocks(seed), [], []
    system = b.new(20)
    while len(rows) < n:
        while len(running) < at_once:
            running.append([system + b.new(b.rng.randint(3, 10)), b.rng.randint(5, 60)])
        s = b.rng.choice(running)
        rows.append((len(rows), s[0] + b.new(1), int(b.rng.lognormvariate(4.5, 0.8)) + 1))
        s[0], s[1] = s[0] + b.new(1 + int(b.rng.expovariate(1 / 3))), s[1] - 1
        if s[1] <= 0:
            running.remove(s)
    return rows


def main():
    later = [(t + 2000, ids, out) for t, ids, out in chat(10, 2500)]
    kinds = {
        "chat": chat(1), "chat-short": chat(2, goes_on=0.5, pause=300),
        "chat-long": chat(3, goes_on=0.9, pause=20, systems=50), "chat-many": chat(4, n=20000),
        "rag": rag(5), "rag-wide": rag(6, documents=3000),
        "agents": agents(7), "agents-many": agents(8, at_once=60),
        "mixed": sorted(chat(9, 2000) + rag(11, 2000)), "drift": rag(12, 2000) + later,
        "loop": [(i, list(range(i % 100 * 20, i % 100 * 20 + 20)), 20) for i in range(3000)],
    }
    for kind, rows in kinds.items():
        with open(f"{sys.argv[1]}/{kind}.jsonl", "w") as f:
            for t, ids, out in rows:
                row = {"timestamp": int(t * 1000), "output_length": out, "hash_ids": ids}
                f.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()

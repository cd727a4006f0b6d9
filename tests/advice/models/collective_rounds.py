"""Collectives as messages between ranks, event by event: it knows no closed form.

A rank's link sends one message at a time and receives one at a time, both at once. A message of m
bytes occupies both for m * beta seconds, and is there alpha seconds later.
"""

import heapq

import numpy as np


class Links:
    """Messages in the order in which they can begin; `deliver` is called with each that arrives."""

    def __init__(self, num_ranks, alpha_s, beta_s):
        self.alpha_s, self.beta_s = alpha_s, beta_s
        self.out_free_s, self.in_free_s = np.zeros(num_ranks), np.zeros(num_ranks)
        self.queue, self.count = [], 0

    def send(self, ready_s, one, other, num_bytes, deliver):
        self.count += 1
        heapq.heappush(self.queue, (ready_s, self.count, one, other, num_bytes, deliver))

    def run(self):
        """Seconds until the last message is there."""
        last_s = 0.0
        while self.queue:
            ready_s, count, one, other, num_bytes, deliver = heapq.heappop(self.queue)
            begin_s = max(ready_s, self.out_free_s[one], self.in_free_s[other])
            if begin_s > ready_s:
                heapq.heappush(self.queue, (begin_s, count, one, other, num_bytes, deliver))
                continue
            self.out_free_s[one] = self.in_free_s[other] = begin_s + num_bytes * self.beta_s
            there_s = begin_s + self.alpha_s + num_bytes * self.beta_s
            last_s = max(last_s, there_s)
            deliver(there_s)
        return last_s


def ring(num_ranks, num_bytes, alpha_s, beta_s, rounds):
    """Each rank passes a piece to the next one, `rounds` times; n - 1 are a reduce-scatter."""
    links = Links(num_ranks, alpha_s, beta_s)

    def passed_on(rank, left):
        def deliver(there_s):
            if left:
                links.send(there_s, rank, (rank + 1) % num_ranks, piece, passed_on_by_next)

        passed_on_by_next = passed_on((rank + 1) % num_ranks, left - 1) if left else None
        return deliver

    piece = num_bytes / num_ranks
    for rank in range(num_ranks):
        passed_on(rank, rounds)(0.0)
    return links.run()


def in_order_tree(num_ranks):
    """Parent of each rank in a tree whose leaves are the even ranks; -1 for the root."""
    parent = [-1] * num_ranks
    height = (num_ranks - 1).bit_length()
    for rank in range(1, num_ranks):
        low = rank & -rank
        up = (rank ^ low) | (low << 1)
        parent[rank] = up if up < num_ranks else rank ^ low
    assert height >= max(map(len, _paths(parent)))
    return parent


def _paths(parent):
    for rank in range(len(parent)):
        path = []
        while parent[rank] >= 0:
            path.append(rank)
            rank = parent[rank]
        yield path


def two_trees(num_ranks):
    """Parents in both trees: the second one is the first, moved on by one rank."""
    first = in_order_tree(num_ranks)
    second = [-1] * num_ranks
    for rank, up in enumerate(first):
        second[(rank + 1) % num_ranks] = (up + 1) % num_ranks if up >= 0 else -1
    return first, second


def double_tree_latency(num_ranks, alpha_s):
    """Seconds of an all-reduce of no bytes: to each root and back."""
    return max(2 * alpha_s * max(map(len, _paths(parent))) for parent in two_trees(num_ranks))


def double_tree_rounds(num_ranks, pieces):
    """Rounds of both trees with `pieces` each, up and down; a round is one message a rank, at most.

    In turn: messages up of one colour, of the other, down of one colour, of the other. No rank
    sends twice or receives twice in a colour, which is checked.
    """
    trees = two_trees(num_ranks)
    colour = _colours(trees)
    edges = sorted(colour)
    children: dict[tuple[int, int], list[int]] = {
        (tree, up): [] for tree in (0, 1) for up in range(num_ranks)
    }
    for tree, rank, up in edges:
        children[tree, up].append(rank)
    sent_up = dict.fromkeys(edges, 0)
    sent_down = dict.fromkeys(edges, 0)
    rounds = 0
    while min(sent_down.values()) < pieces:
        is_down, now = divmod(rounds % 4, 2)
        ready = []
        for edge in edges:
            tree, rank, up = edge
            below = [sent_up[tree, each, rank] for each in children[tree, rank]]
            above = trees[tree][up]
            reduced = min(sent_up[tree, each, up] for each in children[tree, up])
            there = sent_down[tree, up, above] if above >= 0 else reduced
            sent = sent_down if is_down else sent_up
            have = there if is_down else min(below, default=pieces)
            if colour[edge] == now and sent[edge] < have:
                ready.append(edge)
        assert len({rank for _, rank, _ in ready}) == len(ready)
        assert len({up for _, _, up in ready}) == len(ready)
        for edge in ready:
            (sent_down if is_down else sent_up)[edge] += 1
        rounds += 1
    return rounds


def _colours(trees):
    """0 or 1 for each edge (tree, rank, parent): two of one rank, or to one parent, differ."""
    edges = [
        (tree, rank, up)
        for tree, each in enumerate(trees)
        for rank, up in enumerate(each)
        if up >= 0
    ]
    colour: dict[tuple[int, int, int], int] = {}
    for first in edges:
        waiting = [(first, 0)] if first not in colour else []
        while waiting:
            edge, mine = waiting.pop()
            if edge in colour:
                assert colour[edge] == mine
                continue
            colour[edge] = mine
            for other in edges:
                if other != edge and (other[1] == edge[1] or other[2] == edge[2]):
                    waiting.append((other, 1 - mine))
    return colour

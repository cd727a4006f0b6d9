"""Python to paste into a training's data loader: the methods of this package, without imports.

Each is a text that stands alone; tests run it against the method that it repeats.
"""

ASSIGN = '''\
def assign(lengths, dp_size):
    """Micro-batches of each dp rank; lengths[i] are the sequence lengths in micro-batch i.

    Call it on every rank with the lengths of the whole global batch, and take item `dp_rank`.
    """
    assert len(lengths) % dp_size == 0, "every dp rank has the same number of micro-batches"
    cost = [{cost} for each in lengths]
    ranks, work = [[] for _ in range(dp_size)], [0.0] * dp_size
    for i in sorted(range(len(cost)), key=lambda i: -cost[i]):
        room = [r for r in range(dp_size) if len(ranks[r]) < len(cost) // dp_size]
        least = min(room, key=lambda r: work[r])
        ranks[least].append(i)
        work[least] += cost[i]
    for of_rank in ranks:
        of_rank.sort()  # the order of the data set, which is random if it was shuffled
    return ranks
'''

PACKER = '''\
class Packer:
    """pack(documents) once a step: micro-batches of (tokens, document) pairs of like work."""

    def __init__(self):
        self.limits = {thresholds}
        self.queues = [[] for _ in self.limits]
        self.carried = []

    def pack(self, documents, n={num_microbatches}, most={max_tokens}):
        new = []
        for doc in documents:
            level = sum(doc[0] >= limit for limit in self.limits)
            (self.queues[level - 1] if level else new).append(doc)
        for queue in self.queues:  # outliers wait until each micro-batch can have one
            if len(queue) >= n:
                new += queue[:n]
                del queue[:n]
        new.sort(key=lambda doc: -doc[0])
        waiting, self.carried = self.carried + new, []
        batches, work, tokens = [[] for _ in range(n)], [0.0] * n, [0] * n
        for doc in waiting:
            at = min(range(n), key=lambda i: work[i])
            if tokens[at] + doc[0] > most:
                at = min(range(n), key=lambda i: tokens[i])
            if tokens[at] + doc[0] > most:
                self.carried.append(doc)  # comes first in the next step
                continue
            batches[at].append(doc)
            tokens[at] += doc[0]
            work[at] += {per_token} * doc[0] + {per_square} * doc[0] ** 2
        return batches
'''

CHOOSE_SHARDING = '''\
def choose_sharding(documents, cp={cp_size}, tile=128):
    """"per-sequence" or "per-document", whichever gives the busiest cp rank less attention.

    Both cut into 2 cp chunks, and rank i takes chunks i and 2 cp - 1 - i: of the whole sequence, or
    of each document. `documents` are the lengths of those packed into the sequence.
    """

    def padded(prefix, length):
        length = -(-length // tile) * tile  # kernels compute whole tiles of queries
        return length * (2 * prefix + length + 1) / 2

    by_sequence, by_document, total, begin = [0.0] * cp, [0.0] * cp, sum(documents), 0
    ends = [total * (chunk + 1) // (2 * cp) for chunk in range(2 * cp)]
    chunk = turn = 0
    for length in documents:
        at = begin
        while at < begin + length:
            while ends[chunk] <= at:
                chunk += 1
            end = min(begin + length, ends[chunk])
            by_sequence[min(chunk, 2 * cp - 1 - chunk)] += padded(at - begin, end - at)
            at = end
        begin += length
        size = length // (2 * cp)
        for part in range(2 * cp if size else 0):
            by_document[min(part, 2 * cp - 1 - part)] += padded(part * size, size)
        for token in range(size * 2 * cp, length):  # what is left over, one rank after the other
            by_document[turn] += padded(token, 1)
            turn = (turn + 1) % cp
    return "per-document" if max(by_document) < max(by_sequence) else "per-sequence"
'''

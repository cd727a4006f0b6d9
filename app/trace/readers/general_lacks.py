"""What files of any format may leave unsaid about operations, in figures."""

from collections.abc import Mapping

from app.trace.job import Parallelism
from app.trace.ops import OP_CODES
from app.trace.readers.foreign import Lack, Place
from app.trace.readers.numbering import NUMBERED
from app.trace.readers.op_spool import OpSpool, Spooled


def general_lacks(spool: OpSpool, spooled: Spooled, sizes: Parallelism) -> list[Lack]:
    """What any format may lack."""
    found = []
    missing = sizes.num_workers - len(spooled.places)
    if missing:
        found.append(
            Lack(
                f"workers: {missing:,} of {sizes.num_workers:,} (dp rank, stage) pairs are in no "
                f"file, the first {_first_missing(spooled.places, sizes)}",
                "a step is analysed only where every worker recorded it: give the files of all "
                "workers, or the sizes of what was recorded",
            )
        )
    if spooled.num_peers:
        found.append(
            Lack(
                f"peers: {spooled.num_peers:,} ranks do the same work as another (tensor- or "
                f"sequence-parallel); their {spooled.num_peer_ops:,} operations are left out",
                "a peer that is slower than the one that is kept is not seen",
            )
        )
    if not spool.num_by_type[OP_CODES["optimizer"]]:
        found.append(
            Lack(
                f"optimizer: none among {int(spool.num_by_type.sum()):,} operations",
                "a step ends with its latest operation in place of its optimizer",
            )
        )
    num_computations = int(spool.num_by_type[NUMBERED].sum())
    if num_computations and "seq_len_sq" not in spool.more:
        found.append(
            Lack(
                f"sequence lengths: none of {num_computations:,} computations has its tokens",
                "that long sequences are the cause can only be told from durations",
            )
        )
    return found


def _first_missing(places: Mapping[int, Place], sizes: Parallelism) -> str:
    there = {(place.dp_rank, place.stage) for place in places.values()}
    worker = next(w for w in range(sizes.num_workers) if divmod(w, sizes.pp_size) not in there)
    return "dp_rank {}, stage {}".format(*divmod(worker, sizes.pp_size))


def microbatch_lacks(spool: OpSpool, sizes: Parallelism, is_numbering: bool) -> list[Lack]:
    """What it costs that computations have no micro-batch, where some have none."""
    without = int(spool.num_without_mb[NUMBERED].sum())
    total = int(spool.num_by_type[NUMBERED].sum())
    if not without:
        return []
    what = f"micro-batch ids: {without:,} of {total:,} computations have none"
    if is_numbering:
        return [
            Lack(
                f"{what} and are numbered by their starts",
                "right for GPipe and 1F1B; where a schedule takes micro-batches in another order, "
                "figures by micro-batch are of the wrong ones, slowdowns are not affected",
            )
        ]
    return [
        Lack(
            f"{what}, and the chunks of an interleaved schedule are not told apart",
            "their order is not guessed: where a stage has several chunks, what-ifs need the chunk "
            "of every computation and refuse its steps",
        )
    ]

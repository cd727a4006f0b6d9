"""Mean durations of the operations of a simulated job, without waits; also of a transformer's.

A transformer's computations follow from its layers, hidden size and sequence length. Transfers have
the alpha-beta model: a fixed time per message plus its bytes divided by the bandwidth. Collectives
are rings.
"""

from dataclasses import dataclass, field, fields, replace

import numpy as np

from app.errors import InvalidRequest
from app.synth.noise import LogNormal, Noise, check_amounts
from app.trace.job import Parallelism
from app.trace.ops import Direction
from app.trace.window import Floats


@dataclass(frozen=True, slots=True)
class OperationCosts:
    """Mean seconds of all operations, and their variation.

    `forward_s` and `backward_s` are of one micro-batch on one stage, with all of its chunks and
    both halves of a split backward; `weight_share` is the share of the second half. `noise` and
    `transfer_noise` are coefficients of variation of factors of kind `tail`; healthy production
    workers have 0.015 to 0.03. `stage_factors` scale the computations of the stages,
    `chunk_factors` those of the chunks of the whole model, in order. `sizes` are the bytes that
    operations of a type move, as far as known.
    """

    forward_s: float = 0.02
    backward_s: float = 0.04
    optimizer_s: float = 2e-3
    gc_s: float = 2e-5
    stage_transfer_s: float = 2e-4
    params_all_gather_s: float = 3e-3
    grads_reduce_scatter_s: float = 4e-3
    layernorm_all_reduce_s: float = 2e-4
    embedding_all_reduce_s: float = 8e-4
    clip_s: float = 4e-4
    launch_delay_s: float = 2e-5
    noise: float = 0.015
    transfer_noise: float = 0.05
    stage_factors: tuple[float, ...] = ()
    chunk_factors: tuple[float, ...] = ()
    weight_share: float = 0.5
    tail: Noise = field(default_factory=LogNormal)
    sizes: tuple[tuple[str, int], ...] = ()

    def __post_init__(self) -> None:
        check_amounts(**{f.name: getattr(self, f.name) for f in fields(self) if f.type is float})
        if self.weight_share > 1:
            raise InvalidRequest(f"weight_share is {self.weight_share}: a share is at most 1")
        for name in ("stage_factors", "chunk_factors"):
            if any(not (np.isfinite(factor) and factor > 0) for factor in getattr(self, name)):
                raise InvalidRequest(f"{name}: every factor is a number above 0")

    @property
    def once_s(self) -> dict[str, float]:
        """Mean seconds of the operations that occur once per step or chunk, by type."""
        return {
            "params-all-gather": self.params_all_gather_s,
            "gc": self.gc_s,
            "layernorm-grads-all-reduce": self.layernorm_all_reduce_s,
            "embedding-grads-all-reduce": self.embedding_all_reduce_s,
            "grads-reduce-scatter": self.grads_reduce_scatter_s,
            "optimizer-clip-main-grad": self.clip_s,
            "optimizer": self.optimizer_s,
        }

    def computation_s(self, direction: Direction, parallelism: Parallelism) -> Floats:
        """Mean seconds of one micro-batch in one direction, [stages, chunks]."""
        base_s = self.forward_s if direction is Direction.FORWARD else self.backward_s
        num_chunks = parallelism.vpp_size
        mean_s = np.full((parallelism.pp_size, num_chunks), base_s / num_chunks)
        if self.stage_factors:
            self._refuse_other_count("stage_factors", parallelism.pp_size)
            mean_s *= np.asarray(self.stage_factors)[:, None]
        if self.chunk_factors:
            self._refuse_other_count("chunk_factors", mean_s.size)
            mean_s *= np.reshape(self.chunk_factors, (num_chunks, parallelism.pp_size)).T
        return mean_s

    def _refuse_other_count(self, name: str, count: int) -> None:
        """Check that every stage or chunk has a factor."""
        if (given := len(getattr(self, name))) != count:
            noun = name.removesuffix("_factors")
            raise InvalidRequest(f"{given} {noun} factors for {count} {noun}s: give one for each")


@dataclass(frozen=True, slots=True)
class NetworkModel:
    """A message takes `alpha_s` plus its bytes divided by `bytes_per_s`."""

    alpha_s: float = 1e-5
    bytes_per_s: float = 5e10  # 400 Gbit/s

    def __post_init__(self) -> None:
        check_amounts(alpha_s=self.alpha_s)
        if not self.bytes_per_s > 0:
            raise InvalidRequest(f"bytes_per_s is {self.bytes_per_s}: give a number above 0")

    def transfer_s(self, num_bytes: float) -> float:
        """Seconds of a transfer of s bytes between two workers.

        alpha + s * beta
        """
        return self.alpha_s + num_bytes / self.bytes_per_s

    def all_gather_s(self, num_ranks: int, num_bytes: float) -> float:
        """Seconds until n ranks, which had s / n bytes each, all have s bytes.

        (n - 1) alpha + (n - 1) / n * s * beta

        A reduce-scatter takes the same time.
        """
        others = num_ranks - 1
        return others * self.alpha_s + others / num_ranks * num_bytes / self.bytes_per_s

    def all_reduce_s(self, num_ranks: int, num_bytes: float) -> float:
        """Seconds until all of n ranks have the sum of s bytes: a reduce-scatter and an all-gather.

        2 (n - 1) alpha + 2 (n - 1) / n * s * beta
        """
        return 2 * self.all_gather_s(num_ranks, num_bytes)


_BYTES_PER_ACTIVATION = 2  # of an activation or a parameter in bf16
_GRADIENT_BYTES = 4  # summed in float32
_BACKWARD = 2.0  # relative to forward: two matrix products instead of one

# Time of the lookup and its normalisation in units of a layer; small for all models.
_EMBEDDING_LAYERS = 0.1


@dataclass(frozen=True, slots=True)
class TransformerModel:
    """A decoder of `num_layers` layers; a micro-batch is one sequence of `seq_len` tokens.

    `layers` are the numbers of layers in the chunks of the whole model, in order; the first chunk
    also has the embedding, the last one the loss. Without `layers`, all chunks take the same time.
    `flops_per_s` is the achieved rate of a GPU.
    """

    num_layers: int = 64
    hidden_size: int = 6144
    seq_len: int = 8192
    vocab_size: int = 128_000
    flops_per_s: float = 4e14
    layers: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for name in (f.name for f in fields(self) if f.name != "layers"):
            if not getattr(self, name) > 0:
                raise InvalidRequest(f"model: {name} is {getattr(self, name)}: give more than 0")
        if self.layers and (min(self.layers) < 0 or sum(self.layers) != self.num_layers):
            raise InvalidRequest(
                f"model: layers are {self.layers}, {sum(self.layers)} of {self.num_layers} together"
            )

    def layer_flops(self) -> float:
        """Floating-point operations of one layer, forward.

        24 h^2 T + 2 h T^2

        Causal attention is quadratic in the number of tokens T, the rest is linear.
        """
        return (24 * self.hidden_size + 2 * self.seq_len) * self.hidden_size * self.seq_len

    def chunks_s(self, parallelism: Parallelism) -> Floats:
        """[chunks of the whole model], forward seconds."""
        num_chunks = parallelism.pp_size * parallelism.vpp_size
        layer_s = self.layer_flops() / self.flops_per_s / parallelism.tp_size
        logits = 2 * self.hidden_size * self.vocab_size * self.seq_len / self.layer_flops()
        if not self.layers:
            total = self.num_layers + _EMBEDDING_LAYERS + logits
            return np.full(num_chunks, total / num_chunks * layer_s)
        if len(self.layers) != num_chunks:
            raise InvalidRequest(
                f"model: layers of {len(self.layers)} chunks, the job has {num_chunks}"
            )
        layers = np.array(self.layers, np.float64)
        layers[0] += _EMBEDDING_LAYERS
        layers[-1] += logits
        return layers * layer_s

    def costs(
        self, parallelism: Parallelism, network: NetworkModel, costs: OperationCosts
    ) -> OperationCosts:
        """The costs with the computations and transfers replaced by this model's."""
        chunks_s = self.chunks_s(parallelism)
        dp_size, tp_size = parallelism.dp_size * parallelism.dsp_size, parallelism.tp_size
        sizes = self._sizes(parallelism)
        return replace(
            costs,
            forward_s=float(chunks_s.sum()) / parallelism.pp_size,
            backward_s=_BACKWARD * float(chunks_s.sum()) / parallelism.pp_size,
            chunk_factors=tuple((chunks_s / chunks_s.mean()).tolist()) if self.layers else (),
            stage_transfer_s=network.transfer_s(sizes["forward-send"]),
            params_all_gather_s=network.all_gather_s(dp_size, sizes["params-all-gather"]),
            grads_reduce_scatter_s=network.all_gather_s(dp_size, sizes["grads-reduce-scatter"]),
            layernorm_all_reduce_s=network.all_reduce_s(
                tp_size, sizes["layernorm-grads-all-reduce"]
            ),
            embedding_all_reduce_s=network.all_reduce_s(2, sizes["embedding-grads-all-reduce"]),
            clip_s=network.all_reduce_s(parallelism.num_workers, _GRADIENT_BYTES),
            sizes=tuple(sizes.items()),
        )

    def _sizes(self, parallelism: Parallelism) -> dict[str, int]:
        """Bytes that an operation moves, by type."""
        tp_size, num_chunks = parallelism.tp_size, parallelism.pp_size * parallelism.vpp_size
        embedding = self.hidden_size * self.vocab_size // tp_size
        parameters = 12 * self.hidden_size**2 * self.num_layers // num_chunks // tp_size
        activations = self.seq_len * self.hidden_size * _BYTES_PER_ACTIVATION
        p2p = ("forward-send", "forward-recv", "backward-send", "backward-recv")
        return dict.fromkeys(p2p, activations) | {
            "params-all-gather": parameters * _BYTES_PER_ACTIVATION,
            "grads-reduce-scatter": parameters * _GRADIENT_BYTES,
            "layernorm-grads-all-reduce": 4 * self.hidden_size * _GRADIENT_BYTES,
            "embedding-grads-all-reduce": embedding * _GRADIENT_BYTES,
            "optimizer-clip-main-grad": _GRADIENT_BYTES,
        }

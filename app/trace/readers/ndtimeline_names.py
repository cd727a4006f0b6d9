"""The names that ndtimeline's metrics have, as Paceline's op types."""

# Registered by the open version, or known to its timeline writer (predefined.py).
_ALIASES = {
    "unshard-all-gather": ("params-all-gather",),
    "grad-reduce-scatter": ("grads-reduce-scatter",),
    "grad-all-reduce": ("separate-grads-all-reduce",),
    "grads-reduce-scatter-nonoverlapping": ("grads-reduce-scatter",),
    "params-all-gather-nonoverlapping": ("params-all-gather",),
}
# One call that waits for several transfers.
FUSED = {
    "forward-send-backward-recv": ("forward-send", "backward-recv"),
    "backward-send-forward-recv": ("backward-send", "forward-recv"),
    "forward-send-forward-recv": ("forward-send", "forward-recv"),
    "backward-send-backward-recv": ("backward-send", "backward-recv"),
}
# They run inside a computation or the optimizer, whose time has theirs in it; "special" marks a
# flush.
PARTS = (
    "tp-allreduce",
    "tp-allgather",
    "tp-reducescatter",
    "optimizer-inner-step",
    "optimizer-copy-to-main-grad",
    "optimizer-copy-main-to-model-params",
    "special",
)
KNOWN: dict[str, tuple[str, ...]] = {**_ALIASES, **FUSED, **dict.fromkeys(PARTS, ())}

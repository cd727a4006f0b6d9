"""Records Lightning: data parallelism, whether by DDP, by FSDP2 or on one GPU.

    from paceline_client.integrations.lightning import PacelineCallback

    trainer = Trainer(callbacks=[PacelineCallback(job="bert-large")])

A step is one step of the optimizer, with all its accumulated batches; with manual optimization,
one batch.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from ..recorder import never_raises
from . import ddp, fsdp2
from .trainer_steps import TrainerSteps, lightning_topology, reduces_gradients

log = logging.getLogger("paceline_client")


def _base() -> Any:
    for package in ("lightning.pytorch", "pytorch_lightning"):
        try:
            return import_module(package).Callback
        except ImportError:
            continue
    return object


class PacelineCallback(_base()):  # type: ignore[misc]
    """Records every `fit` of a trainer. Never raises.

    `options` are those of `paceline_client.start`: what is left out comes from the environment.
    `work` tells what is known of a batch: `tokens` and `seq_len_sq`.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self._steps = TrainerSteps(**options)
        self._number = -1  # of the step that is open
        self._attributes: Mapping[str, int] = {}

    @never_raises
    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """The model is wrapped, and the first batch not yet asked for."""
        self._steps.train_begins(
            "lightning", functools.partial(lightning_topology, trainer.strategy)
        )
        self._steps.watch_once(getattr(trainer.strategy, "model", None), self._watch)
        for optimizer in trainer.optimizers:
            self._steps.watch_once(optimizer, self._watch_optimizer)

    @never_raises
    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """The next batch is waited for."""
        self._steps.idle()

    @never_raises
    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        """A batch is there; unless gradients are being accumulated, a step begins with it."""
        if self._steps.is_open:
            self._steps.waited()
        else:
            self._number = _number(trainer, pl_module)
            self._steps.begin(self._number)
        if self._steps.in_step.is_open:
            self._attributes = self._steps.attributes_of(batch)
            self._steps.computing.begin("forward-compute", **self._attributes)

    @never_raises
    def on_before_backward(self, trainer: Any, pl_module: Any, loss: Any) -> None:
        """The loss is there."""
        self._steps.computing.begin("backward-compute", **self._attributes)

    @never_raises
    def on_after_backward(self, trainer: Any, pl_module: Any) -> None:
        """The gradients are there, and reduced."""
        self._steps.computing.end()

    @never_raises
    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        """The gradients are clipped next."""
        self._steps.optimizer_begins()

    @never_raises
    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """The step is done, if the optimizer has stepped."""
        self._steps.computing.end()
        if not pl_module.automatic_optimization or _number(trainer, pl_module) != self._number:
            self._steps.end()
        else:
            self._steps.idle()

    @never_raises
    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """An evaluation is over."""
        self._steps.aside("eval")

    @never_raises
    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: Any) -> None:
        """A checkpoint is being written."""
        self._steps.aside("checkpoint")

    @never_raises
    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Deliver what is left."""
        self._steps.train_ended()

    @never_raises
    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Whatever step was going on is not done."""
        self._steps.train_ended()

    def _watch(self, model: Any) -> None:
        recorder = self._steps.in_step
        if reduces_gradients(model):
            ddp.attach(recorder, model, computes=False)
        elif any(hasattr(module, "set_custom_reduce_scatter") for module in model.modules()):
            fsdp2.attach(recorder, model, computes=False)

    def _watch_optimizer(self, optimizer: Any) -> None:
        optimizer.register_step_post_hook(lambda *_: self._steps.optimizer_ended())


def _number(trainer: Any, pl_module: Any) -> int:
    if pl_module.automatic_optimization:
        return int(trainer.global_step)
    return int(trainer.fit_loop.epoch_loop.total_batch_idx)

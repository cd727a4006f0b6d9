"""Records the Hugging Face Trainer: data parallelism, whether by DDP, by FSDP2 or on one GPU.

    from paceline_client.integrations import huggingface

    trainer = Trainer(...)
    huggingface.attach(trainer, job="bert-large")
    trainer.train()

A step is one step of the optimizer, with all its accumulated micro-batches.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from ..recorder import never_raises
from . import ddp, fsdp2
from .trainer_steps import TrainerSteps, hugging_face_topology, reduces_gradients

log = logging.getLogger("paceline_client")


def _base() -> Any:
    try:
        return import_module("transformers").TrainerCallback
    except ImportError:
        return object


def attach(trainer: Any, **options: Any) -> PacelineCallback:
    """Record every training of a trainer; its callback.

    Never raises. `options` are those of `paceline_client.start`, which default to the environment.
    `work` maps a forward's inputs to attributes: `tokens` and `seq_len_sq`.
    """
    callback = PacelineCallback(trainer=trainer, **options)
    try:
        trainer.add_callback(callback)
    except Exception as error:
        log.warning("paceline: the trainer is not recorded: %s", error)
    return callback


class PacelineCallback(_base()):  # type: ignore[misc]
    """The callback alone, for `Trainer(callbacks=[...])`: it does not see gradients reduced."""

    def __init__(self, *, trainer: Any = None, **options: Any) -> None:
        self._trainer = trainer
        self._steps = TrainerSteps(**options)

    @never_raises
    def on_train_begin(self, args: Any, state: Any, control: Any, **about: Any) -> None:
        """The model is wrapped, and the first batch not yet asked for."""
        find_place = functools.partial(
            hugging_face_topology, self._trainer, args, about.get("model")
        )
        self._steps.train_begins("transformers", find_place)
        model = getattr(self._trainer, "model_wrapped", None) or about.get("model")
        if self._trainer is None and getattr(args, "torch_compile", False):
            log.warning("paceline: computations are not recorded: use attach(trainer, ...)")
            return
        if self._trainer is None and getattr(args, "world_size", 1) > 1:
            log.warning("paceline: gradients are not recorded: use attach(trainer, ...)")
        self._steps.watch_once(model, self._watch)

    @never_raises
    def on_epoch_begin(self, args: Any, state: Any, control: Any, **about: Any) -> None:
        """The next batch is waited for."""
        self._steps.idle()

    @never_raises
    def on_step_begin(self, args: Any, state: Any, control: Any, **about: Any) -> None:
        """All batches of the step are there."""
        self._steps.begin(int(state.global_step))

    @never_raises
    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **about: Any) -> None:
        """The gradients are reduced and clipped."""
        self._steps.optimizer_begins()

    @never_raises
    def on_optimizer_step(self, args: Any, state: Any, control: Any, **about: Any) -> None:
        """The parameters have changed."""
        self._steps.optimizer_ended()

    @never_raises
    def on_step_end(self, args: Any, state: Any, control: Any, **about: Any) -> None:
        """The step is done; work before the next one does not belong to it."""
        self._steps.end()

    @never_raises
    def on_log(self, args: Any, state: Any, control: Any, **about: Any) -> None:
        """Logging is no wait for data."""
        self._steps.idle()

    @never_raises
    def on_evaluate(self, args: Any, state: Any, control: Any, **about: Any) -> None:
        """An evaluation is over."""
        self._steps.aside("eval")

    @never_raises
    def on_save(self, args: Any, state: Any, control: Any, **about: Any) -> None:
        """A checkpoint has been written."""
        self._steps.aside("checkpoint")

    @never_raises
    def on_train_end(self, args: Any, state: Any, control: Any, **about: Any) -> None:
        """Deliver what is left."""
        self._steps.train_ended()

    def _watch(self, model: Any) -> None:
        # Hooks must not refer to the trainer, or the model would keep it alive.
        recorder, work = self._steps.in_step, functools.partial(_attributes, self._steps)
        if reduces_gradients(model):
            is_watched = ddp.attach(recorder, model, work=work)
        elif any(hasattr(module, "set_custom_reduce_scatter") for module in model.modules()):
            is_watched = fsdp2.attach(recorder, model, work=work)
        else:
            is_watched = False
        if not is_watched:
            ddp._Passes(recorder, -1, work).watch(model)


def _attributes(steps: TrainerSteps, *args: Any, **inputs: Any) -> Mapping[str, int]:
    return steps.attributes_of(inputs or (args[0] if args else {}))

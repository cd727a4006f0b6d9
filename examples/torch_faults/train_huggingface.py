"""Trains runs with the Trainer of transformers, on every rank like `train.py`.

A separate module, so that transformers is imported only if needed, once, before ranks fork.
"""

from __future__ import annotations

import tempfile

import torch.distributed as dist
from paceline_client.integrations import huggingface
from transformers import Trainer, TrainingArguments

from .faults import SLOW_COLLATE_S, Collate, Rows
from .layers import WithLoss, stack
from .train import ROWS, Training, train_runs

LAYERS = 5


class TrainerTraining(Training):
    """One run of a Trainer under DDP, on one rank; the culprit's collate function is slow."""

    def train(self) -> None:
        """Train all steps, recorded; return once the server has the record."""
        with tempfile.TemporaryDirectory() as directory:
            arguments = TrainingArguments(
                output_dir=directory,
                max_steps=self.plan.steps,
                per_device_train_batch_size=ROWS,
                use_cpu=True,
                report_to=[],
                disable_tqdm=True,
                logging_strategy="no",
                save_strategy="no",
                ddp_find_unused_parameters=False,
                remove_unused_columns=False,
                seed=self.plan.seed,
            )
            trainer = Trainer(
                model=WithLoss(stack(self.pace, LAYERS)),
                args=arguments,
                train_dataset=Rows(self.plan.steps * ROWS * dist.get_world_size()),
                data_collator=Collate(SLOW_COLLATE_S if self.is_culprit else 0.0),
            )
            huggingface.attach(trainer, **self.options())
            trainer.train()


def main() -> None:
    """Train the runs of the command line."""
    train_runs(TrainerTraining)


if __name__ == "__main__":
    main()

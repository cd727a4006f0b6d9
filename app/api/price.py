"""What a GPU costs an hour, where the operator has said it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Price:
    """So much an hour, in a currency whose sign stands before the amount."""

    per_gpu_hour: float
    currency: str

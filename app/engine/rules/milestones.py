"""Moments inside an operation that others wait for: DDP reduces a bucket while a backward runs."""

from dataclasses import dataclass, field

from app.engine.template import Template


@dataclass(slots=True)
class Milestones:
    """Vertices that end when a share of an operation has run.

    They are numbered after the template's operations, and wait for what their operation waits
    for.
    """

    num_ops: int
    of_op: list[int] = field(default_factory=list)
    share: list[float] = field(default_factory=list)

    @classmethod
    def of(cls, template: Template) -> "Milestones":
        """None yet."""
        return cls(template.num_ops)

    def add(self, op: int, share: float) -> int:
        """The vertex of this moment."""
        self.of_op.append(op)
        self.share.append(share)
        return self.num_ops + len(self.of_op) - 1

"""Steps that stand for several, and indexes to find the windows that are due for thinning."""

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None

_WITH_PER_STEP = sa.text("per_step IS NOT NULL")


def upgrade() -> None:
    for name in ("last_step", "num_steps"):
        op.add_column("steps", sa.Column(name, sa.BigInteger()))
    op.create_index(
        "ix_windows_with_per_step",
        "windows",
        ["updated_s"],
        sqlite_where=_WITH_PER_STEP,
        postgresql_where=_WITH_PER_STEP,
    )
    op.create_index("ix_windows_age", "windows", ["job_id", "epoch", "first_step", "updated_s"])


def downgrade() -> None:
    op.drop_index("ix_windows_age", "windows")
    op.drop_index("ix_windows_with_per_step", "windows")
    for name in ("last_step", "num_steps"):
        op.drop_column("steps", name)

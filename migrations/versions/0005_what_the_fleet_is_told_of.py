"""What the fleet's page is made of: windows in brief, what they lost, hosts; saved questions.

And whose worker a silent rank is.
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.types import TypeEngine

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

_WINDOW = ("job_id", "epoch", "first_step")
_OF_WINDOW = [f"windows.{name}" for name in _WINDOW]


def upgrade() -> None:
    op.create_table(
        "window_briefs",
        *_window_key(),
        sa.Column("brief", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint(*_WINDOW, name="pk_window_briefs"),
        sa.ForeignKeyConstraint(_WINDOW, _OF_WINDOW, name="fk_window_briefs_windows"),
    )
    _create_losses()
    op.create_table(
        "run_hosts",
        sa.Column("job_id", _key(128), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False, autoincrement=False),
        sa.Column("host", _key(256), nullable=False),
        sa.PrimaryKeyConstraint("job_id", "epoch", "host", name="pk_run_hosts"),
        sa.ForeignKeyConstraint(
            ["job_id", "epoch"], ["runs.job_id", "runs.epoch"], name="fk_run_hosts_runs"
        ),
    )
    op.create_index("ix_run_hosts_host", "run_hosts", ["host"])
    op.create_table(
        "saved_questions",
        sa.Column("question_id", _key(32), nullable=False),
        sa.Column("job_id", _key(128), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("window_id", sa.Text(), nullable=False),
        sa.Column("question", sa.Text(), nullable=False),
        sa.Column("saved_s", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("question_id", name="pk_saved_questions"),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.job_id"], name="fk_saved_questions_jobs"),
    )
    op.create_index("ix_saved_questions_job_id_saved_s", "saved_questions", ["job_id", "saved_s"])
    op.add_column("runs", sa.Column("silent_workers", sa.Text()))


def downgrade() -> None:
    for table in ("saved_questions", "run_hosts", "window_losses", "window_briefs"):
        op.drop_table(table)
    op.drop_column("runs", "silent_workers")


def _create_losses() -> None:
    op.create_table(
        "window_losses",
        *_window_key(),
        sa.Column("kind", _key(16), nullable=False),
        sa.Column("name", _key(256), nullable=False),
        sa.Column("updated_s", sa.Double(), nullable=False),
        sa.Column("gpu_s", sa.Double(), nullable=False),
        sa.Column("gpu_s_recorded", sa.Double()),
        sa.Column("num_gpus", sa.BigInteger(), nullable=False),
        sa.Column("slowdown", sa.Double()),
        sa.PrimaryKeyConstraint(*_WINDOW, "kind", "name", name="pk_window_losses"),
        sa.ForeignKeyConstraint(_WINDOW, _OF_WINDOW, name="fk_window_losses_windows"),
    )
    op.create_index("ix_window_losses_kind", "window_losses", ["kind", "updated_s"])
    op.create_index("ix_window_losses_name", "window_losses", ["kind", "name", "updated_s"])


def _window_key() -> list[sa.Column[object]]:
    return [
        sa.Column("job_id", _key(128), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False, autoincrement=False),
        sa.Column("first_step", sa.BigInteger(), nullable=False, autoincrement=False),
    ]


def _key(length: int) -> TypeEngine[str]:
    return sa.String(length).with_variant(sa.String(length, collation="C"), "postgresql")

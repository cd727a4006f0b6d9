"""Which window has the operations of an object: by default the one that they were moved from."""

import sqlalchemy as sa
from alembic import op

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None

_NAMES = ("first_step", "revision")


def upgrade() -> None:
    for name in _NAMES:
        op.add_column("window_objects", sa.Column(f"window_{name}", sa.BigInteger()))
    op.execute(
        "UPDATE window_objects SET window_first_step = first_step, window_revision = revision"
    )
    # SQLite copies the table, which has one small row for each object.
    with op.batch_alter_table("window_objects") as batch:
        for name in _NAMES:
            batch.alter_column(f"window_{name}", existing_type=sa.BigInteger(), nullable=False)


def downgrade() -> None:
    # Objects of windows that have been joined have no window then: the older release deletes them.
    for name in _NAMES:
        op.drop_column("window_objects", f"window_{name}")

"""A job's own operation types, and the size of its expert-parallel blocks."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # The defaults are for the runs that are there already, and stay: SQLite cannot drop one
    # without copying the table.
    op.add_column("runs", sa.Column("ep_size", sa.Integer(), nullable=False, server_default="1"))
    op.add_column("runs", sa.Column("op_types", sa.Text(), nullable=False, server_default="[]"))


def downgrade() -> None:
    op.drop_column("runs", "op_types")
    op.drop_column("runs", "ep_size")

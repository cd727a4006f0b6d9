"""What became of collectives inside groups, beside the counts of operations."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("ingest_counts", sa.Column("in_groups", sa.Text()))


def downgrade() -> None:
    op.drop_column("ingest_counts", "in_groups")

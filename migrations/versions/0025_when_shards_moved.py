"""When each shard was taken: readiness tells of consumers that take it from each other."""

import sqlalchemy as sa
from alembic import op

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("shards", sa.Column("taken_s", sa.Text()))


def downgrade() -> None:
    op.drop_column("shards", "taken_s")

"""When each step started, by the wall clock."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("steps", sa.Column("started_s", sa.Double()))


def downgrade() -> None:
    op.drop_column("steps", "started_s")

"""Samples of how full the disk was, for the forecast of days left."""

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "disk_samples",
        sa.Column("at_s", sa.Double(), nullable=False),
        sa.Column("used_bytes", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("at_s", name="pk_disk_samples"),
    )


def downgrade() -> None:
    op.drop_table("disk_samples")

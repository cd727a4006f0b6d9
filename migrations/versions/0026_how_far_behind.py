"""How far consumers are behind, whose pushes are refused, and which alert groups wait for that."""

import sqlalchemy as sa
from alembic import op

revision = "0026"
down_revision = "0025"
branch_labels = None
depends_on = None

_KEY = sa.String(128).with_variant(sa.String(128, collation="C"), "postgresql")


def upgrade() -> None:
    op.add_column("shards", sa.Column("as_of_s", sa.Double()))
    op.add_column("alert_groups", sa.Column("held_since_s", sa.Double()))
    op.add_column(
        "alert_told", sa.Column("flaps", sa.Boolean(), nullable=False, server_default=sa.false())
    )
    op.create_table(
        "refusals",
        sa.Column("job_id", _KEY, primary_key=True),
        sa.Column("since_s", sa.Double(), nullable=False),
        sa.Column("last_s", sa.Double(), nullable=False),
    )


def downgrade() -> None:
    op.drop_table("refusals")
    op.drop_column("alert_told", "flaps")
    op.drop_column("alert_groups", "held_since_s")
    op.drop_column("shards", "as_of_s")

"""What is watched of the service, when consumers last finished a turn, heartbeats of receivers.

`service_watches` has one row for each thing that people are told of when it stops working.
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.types import TypeEngine

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

_TIMES = ("heartbeat_every_s", "heartbeat_at_s")


def upgrade() -> None:
    op.add_column("consumers", sa.Column("last_turn_s", sa.Double()))
    for name in _TIMES:
        op.add_column("endpoints", sa.Column(name, sa.Double()))
    op.create_table(
        "service_watches",
        sa.Column("name", _key(32), nullable=False),
        sa.Column("ok_s", sa.Double()),
        sa.Column("since_s", sa.Double(), nullable=False),
        sa.Column("checked_s", sa.Double()),
        sa.Column("lease_until_s", sa.Double(), nullable=False),
        sa.Column("told_s", sa.Double()),
        sa.Column("took_s", sa.Double()),
        sa.Column("rounds", sa.BigInteger(), nullable=False),
        sa.Column("detail", sa.Text()),
        sa.PrimaryKeyConstraint("name", name="pk_service_watches"),
    )


def downgrade() -> None:
    # The older release knows neither these messages nor this format.
    op.execute(
        "DELETE FROM delivery_attempts WHERE delivery_id IN (SELECT delivery_id FROM outbox "
        "WHERE kind IN ('service-down', 'service-up', 'heartbeat'))"
    )
    op.execute("DELETE FROM outbox WHERE kind IN ('service-down', 'service-up', 'heartbeat')")
    op.execute("DELETE FROM endpoints WHERE heartbeat_every_s IS NOT NULL")
    op.drop_table("service_watches")
    for name in _TIMES:
        op.drop_column("endpoints", name)
    op.drop_column("consumers", "last_turn_s")


def _key(length: int) -> TypeEngine[str]:
    return sa.String(length).with_variant(sa.String(length, collation="C"), "postgresql")

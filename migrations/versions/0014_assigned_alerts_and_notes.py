"""Who an alert is assigned to, its last note, silences until a job ends, and addresses.

`service_addresses` has the address at which the pages of this service were last served.
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.types import TypeEngine

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

_TEXTS = ("assigned_to", "assigned_by", "note", "noted_by")
_TIMES = ("assigned_at_s", "noted_at_s")


def upgrade() -> None:
    for name in _TEXTS:
        op.add_column("alerts", sa.Column(name, sa.Text()))
    for name in _TIMES:
        op.add_column("alerts", sa.Column(name, sa.Double()))
    op.add_column("muting", sa.Column("until_end_of", _key(128)))
    op.create_table(
        "service_addresses",
        sa.Column("name", _key(64), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_service_addresses"),
    )


def downgrade() -> None:
    # The older release cannot read transitions of these kinds.
    op.execute("DELETE FROM alert_events WHERE kind IN ('assigned', 'unassigned', 'note')")
    op.drop_table("service_addresses")
    op.drop_column("muting", "until_end_of")
    for name in (*_TEXTS, *_TIMES):
        op.drop_column("alerts", name)


def _key(length: int) -> TypeEngine[str]:
    return sa.String(length).with_variant(sa.String(length, collation="C"), "postgresql")

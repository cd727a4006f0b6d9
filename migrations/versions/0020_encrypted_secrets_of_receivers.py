"""The encrypted address and secrets of receivers.

The key is not in the database, so rows are encrypted by `paceline migrate` afterwards.
"""

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("endpoints", sa.Column("sealed", sa.Text()))


def downgrade() -> None:
    # The older release could send to none of them: their addresses are encrypted.
    op.execute("DELETE FROM endpoints WHERE sealed IS NOT NULL")
    op.drop_column("endpoints", "sealed")

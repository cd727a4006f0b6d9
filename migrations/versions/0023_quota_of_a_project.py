"""How much of the database the windows of a project may take."""

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("projects", sa.Column("keep_gb", sa.Double()))


def downgrade() -> None:
    op.drop_column("projects", "keep_gb")

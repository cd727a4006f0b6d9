"""Sessions of signed-in pages, so that they can be listed and ended."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.types import TypeEngine

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "sessions",
        sa.Column("session_id", _key(32), nullable=False),
        sa.Column("digest", _key(64), nullable=False),
        sa.Column("token_id", _key(32), nullable=False),
        sa.Column("project", _key(32), nullable=False),
        sa.Column("user_agent", sa.Text(), nullable=False),
        sa.Column("address", sa.Text(), nullable=False),
        sa.Column("created_s", sa.Double(), nullable=False),
        sa.Column("expires_s", sa.Double(), nullable=False),
        sa.Column("last_used_s", sa.Double()),
        sa.Column("ended_s", sa.Double()),
        sa.PrimaryKeyConstraint("session_id", name="pk_sessions"),
    )
    op.create_index("ix_sessions_project_created_s", "sessions", ["project", "created_s"])
    op.create_index("ix_sessions_token_id_created_s", "sessions", ["token_id", "created_s"])
    op.create_index("ix_sessions_expires_s", "sessions", ["expires_s"])


def downgrade() -> None:
    op.drop_table("sessions")


def _key(length: int) -> TypeEngine[str]:
    return sa.String(length).with_variant(sa.String(length, collation="C"), "postgresql")

"""Archived and deleted jobs, labels set by people, and saved views of the fleet page."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.types import TypeEngine

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

_IS_DELETED = sa.text("deleted_s IS NOT NULL")


def upgrade() -> None:
    op.add_column("jobs", sa.Column("archived_s", sa.Double()))
    op.add_column("jobs", sa.Column("deleted_s", sa.Double()))
    op.add_column("jobs", sa.Column("removal_began_s", sa.Double()))
    op.add_column(
        "jobs", sa.Column("edited_labels", sa.Text(), nullable=False, server_default="{}")
    )
    op.create_index(
        "ix_jobs_deleted",
        "jobs",
        ["job_id"],
        sqlite_where=_IS_DELETED,
        postgresql_where=_IS_DELETED,
    )
    op.create_table(
        "saved_views",
        sa.Column("view_id", _key(32), nullable=False),
        sa.Column("project", _key(32), nullable=False),
        sa.Column("name", _key(100), nullable=False),
        sa.Column("query", sa.Text(), nullable=False),
        sa.Column("author", sa.Text(), nullable=False),
        sa.Column("saved_s", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("view_id", name="pk_saved_views"),
        sa.UniqueConstraint("project", "name", name="uq_saved_views_project_name"),
    )


def downgrade() -> None:
    op.drop_table("saved_views")
    op.drop_index("ix_jobs_deleted", "jobs")
    for name in ("edited_labels", "removal_began_s", "deleted_s", "archived_s"):
        op.drop_column("jobs", name)


def _key(length: int) -> TypeEngine[str]:
    return sa.String(length).with_variant(sa.String(length, collation="C"), "postgresql")

"""Annotations of jobs and projects, and links to frozen reports."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.types import TypeEngine

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    _create_annotations()
    _create_share_links()


def _create_annotations() -> None:
    op.create_table(
        "annotations",
        sa.Column("annotation_id", _key(32), nullable=False),
        sa.Column("project", _key(32), nullable=False),
        sa.Column("job_id", _key(128)),
        sa.Column("matchers", sa.Text(), nullable=False),
        sa.Column("kind", _key(32), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("host", sa.Text()),
        sa.Column("at_s", sa.Double(), nullable=False),
        sa.Column("ends_s", sa.Double()),
        sa.Column("epoch", sa.BigInteger()),
        sa.Column("step", sa.BigInteger()),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("author", sa.Text(), nullable=False),
        sa.Column("created_s", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("annotation_id", name="pk_annotations"),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.job_id"], name="fk_annotations_jobs"),
    )
    for columns in (("project", "at_s", "annotation_id"), ("job_id", "at_s")):
        op.create_index(f"ix_annotations_{'_'.join(columns)}", "annotations", [*columns])


def _create_share_links() -> None:
    op.create_table(
        "share_links",
        sa.Column("share_id", _key(32), nullable=False),
        sa.Column("project", _key(32), nullable=False),
        sa.Column("job_id", _key(128), nullable=False),
        sa.Column("digest", _key(64), nullable=False),
        sa.Column("author", sa.Text(), nullable=False),
        sa.Column("created_s", sa.Double(), nullable=False),
        sa.Column("expires_s", sa.Double(), nullable=False),
        sa.Column("revoked_s", sa.Double()),
        sa.Column("window_id", sa.Text(), nullable=False),
        sa.Column("first_step", sa.BigInteger(), nullable=False),
        sa.Column("last_step", sa.BigInteger(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("page", sa.LargeBinary()),
        sa.PrimaryKeyConstraint("share_id", name="pk_share_links"),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.job_id"], name="fk_share_links_jobs"),
    )
    op.create_index("ix_share_links_digest", "share_links", ["digest"], unique=True)
    columns = ["project", "created_s", "share_id"]
    op.create_index("ix_share_links_project_created_s_share_id", "share_links", columns)


def downgrade() -> None:
    op.drop_table("share_links")
    op.drop_table("annotations")


def _key(length: int) -> TypeEngine[str]:
    return sa.String(length).with_variant(sa.String(length, collation="C"), "postgresql")

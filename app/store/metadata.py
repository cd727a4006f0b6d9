"""How all tables and their constraints are named, and the keys that many of them share."""

from sqlalchemy import BigInteger, Column, ForeignKey, ForeignKeyConstraint, MetaData

from app.store.columns import key_text

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)


def of_job() -> Column[str]:
    """The key of what a job has once."""
    return Column("job_id", key_text(128), ForeignKey("jobs.job_id"), primary_key=True)


def of_run() -> tuple[Column[str], Column[int], ForeignKeyConstraint]:
    """The key, or its beginning, of what belongs to a run."""
    return (
        Column("job_id", key_text(128), primary_key=True),
        Column("epoch", BigInteger, primary_key=True, autoincrement=False),
        ForeignKeyConstraint(["job_id", "epoch"], ["runs.job_id", "runs.epoch"]),
    )

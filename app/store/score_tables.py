"""The table of scores that other tools have measured: one row a report, as it came."""

from sqlalchemy import BigInteger, Column, ForeignKey, Index, Table

from app.store.columns import JsonText, PackedJson, Real, key_text
from app.store.metadata import metadata

score_reports = Table(
    "score_reports",
    metadata,
    Column("report_id", key_text(32), primary_key=True),
    Column("job_id", key_text(128), ForeignKey("jobs.job_id"), nullable=False),
    Column("epoch", BigInteger, nullable=False),  # of the run that it came in
    Column("source", key_text(64), nullable=False),
    Column("received_s", Real, nullable=False),
    Column("num_scores", BigInteger, nullable=False),
    Column("num_reports", BigInteger, nullable=False),  # of the tool, that this one is made of
    Column("lacks", JsonText, nullable=False),
    Column("scores", PackedJson, nullable=False),  # the worst first
    Index(None, "job_id", "received_s"),
    Index(None, "job_id", "source", "received_s"),
)

"""Run by Alembic, in the transaction that app.store.migrations hands over."""

from alembic import context

from app.store.alerting.tables import all_tables

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=all_tables,
    render_as_batch=True,  # SQLite alters a table by copying it
)
context.run_migrations()

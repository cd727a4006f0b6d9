"""The SQL of alerts, on SQLite and on PostgreSQL."""

"""PostgreSQL: rows in, values out, no decisions."""

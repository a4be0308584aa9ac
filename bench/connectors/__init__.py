"""Each connector into PostgreSQL, next to the bare loop of its client."""

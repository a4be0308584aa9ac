"""Each connector → mapping of six fields → PostgreSQL, against the bare loop of its client, on the same data."""

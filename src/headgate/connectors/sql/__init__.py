"""What the SQL databases share: the ledger of dumps."""

"""What the SQL databases share: quoting, ranges of keys, and the ledger of dumps, which other storages keep as well."""

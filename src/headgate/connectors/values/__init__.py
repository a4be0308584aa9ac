"""Values as bulk readers and writers exchange them: kinds, conversion, digests."""

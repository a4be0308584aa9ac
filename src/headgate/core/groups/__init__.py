"""Groups: one active consumer at a time."""

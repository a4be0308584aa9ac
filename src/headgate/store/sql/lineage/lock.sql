-- Two that settle at once: the second waits, and looks again.
SELECT installation FROM headgate.registry FOR UPDATE

"""The webhook connector: payloads that other programs post."""

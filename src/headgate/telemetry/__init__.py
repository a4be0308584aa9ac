"""Logs and metrics: what a running node says about itself."""

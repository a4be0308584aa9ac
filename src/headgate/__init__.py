"""Headgate: a connector runtime that needs nothing but PostgreSQL."""

__version__ = "0.1.0"

"""Mappings: the document, and the expression language inside it."""

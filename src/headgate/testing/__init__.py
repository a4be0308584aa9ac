"""For tests of connectors and of nodes: public, and used by Headgate's own tests."""

"""Measurements that can be repeated: `python -m bench.<name>` prints its figures."""

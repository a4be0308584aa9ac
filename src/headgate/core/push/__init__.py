"""The push protocol: notifier and local registry."""

PUSH = "push"
"""The type of source whose streams programs make, by pushing them."""

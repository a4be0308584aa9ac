"""The push protocol: notifier and local registry."""

"""The doors for programs: webhooks, the push protocol and the groups protocol."""

"""`headgate console`: a link that signs a browser in."""

from __future__ import annotations

import sys

from headgate.cli.call import Call
from headgate.cli.output import complain
from headgate.text import duration


def console(call: Call) -> None:
    """Make a link that signs a browser in to the console, once."""
    from headgate.web.bodies.access import SignInLink

    found = call.node.post("/api/sign-in", SignInLink).value
    url = call.node.url + found.path
    call.say({"url": url, "expires_s": found.expires_s}, url)
    if sys.stdout.isatty() and not call.as_json:
        complain(f"it signs in once, within {duration(found.expires_s)}")

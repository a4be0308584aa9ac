"""Bodies about documents that somebody edits."""

from __future__ import annotations

from headgate.web.bodies import Answer, Object, Request
from headgate.web.bodies.datasources import Problem


class DocumentChanged(Request):
    """What somebody has changed: the text, or the values."""

    yaml: str | None = None
    document: Object | None = None


class EditedDocument(Answer):
    """The same document in both forms."""

    yaml: str
    document: Object | None  # None: the text cannot be read.
    problems: list[Problem]

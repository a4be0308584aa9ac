"""Dead letters: what they say, what becomes of them, and when there are too many."""

from __future__ import annotations

from typing import Literal, TypeAlias

LetterOutcome: TypeAlias = Literal["open", "replayed", "superseded", "discarded", "expired"]
"""What became of a letter. `superseded`: its key was written, or deleted, after it."""

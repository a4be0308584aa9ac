"""What a delete would lose, in words: the same where a person is asked and where a node refuses."""

from __future__ import annotations

from collections.abc import Sequence

from headgate.text import counted

MOST_NAMED = 5  # In one line.


def losses(payloads: int, letters: int, dumps: Sequence[str]) -> list[str]:
    """`12 accepted payloads wait`, and so on. `dumps` are the ids of those that are not over."""
    found = []
    if payloads:
        found.append(f"{counted(payloads, 'accepted payload')} {'waits' if payloads == 1 else 'wait'}")
    if letters:
        found.append(f"{counted(letters, 'dead letter')} {'is' if letters == 1 else 'are'} open")
    if dumps:
        named = some([id[:13] for id in dumps])
        found.append(f"{'dump' if len(dumps) == 1 else 'dumps'} {named} {'is' if len(dumps) == 1 else 'are'} not over")
    return found


def some(names: Sequence[str]) -> str:
    """The first few, and how many more there are."""
    few = ", ".join(names[:MOST_NAMED])
    return few if len(names) <= MOST_NAMED else f"{few} and {len(names) - MOST_NAMED} more"

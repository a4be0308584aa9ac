"""Where options stand in a line: those that all commands share may come before the command as well as after it.

`headgate --url URL ds --json list` means `headgate ds list --url URL --json`. They are moved behind the words that name
the command, before it is known whether the command has them: one that does not says so as it always does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

WITH_VALUE = ("--url", "--token", "--ca")
ALONE = ("--json",)


def in_order(arguments: Sequence[str], is_noun: Callable[[str], bool]) -> list[str]:
    """The same line, with the shared options behind the words of the command. `is_noun`: whether a command follows
    this word."""
    words: list[str] = []
    moved: list[str] = []
    rest = list(arguments)
    while rest and (not words or (len(words) == 1 and is_noun(words[0]))):
        first = rest[0]
        if first in ALONE or first.partition("=")[0] in WITH_VALUE:
            has_next = first in WITH_VALUE and len(rest) > 1
            moved += [rest.pop(0) for _ in range(2 if has_next else 1)]
        elif first.startswith("-"):
            return [*words, *rest]  # Such as --help: nothing behind it names a command, which would have them.
        else:
            words.append(rest.pop(0))
    is_whole = bool(words) and (len(words) > 1 or not is_noun(words[0]))
    return [*words, *moved, *rest] if is_whole else words

"""Regular expressions that cannot run away.

Python's engine backtracks: a careless pattern can need more steps than there are atoms. A pattern is therefore
weighed before it is used. `_ways` bounds the number of ways in which a pattern can be tried on a text of a given
length; a repeat whose body is itself ambiguous, such as `(a+)+`, has no useful bound and is refused. From the bound
follows the longest text that the pattern may meet, and a longer one fails the record instead of the node. It also
gives the price of each search, so that many searches in one record are bounded together.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from re import _constants as codes  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

from headgate.core.mapping.mistakes import WrongValueError

PATTERN_LIMIT = 200  # Longer patterns are programs, and hard to read as well.
TEXT_LIMIT = 100_000  # What even the simplest pattern may meet.
WAYS_LIMIT = 6_000_000  # Less than twenty milliseconds of the engine's work, in one go.
TRIES_PER_UNIT = 4  # Ways that the engine tries, roughly, in the time of one unit of a record's budget.
USEFUL_TEXT = 64  # A pattern that cannot be tried on this many characters is refused.
COUNT_LIMIT = 1_000  # The largest number in `{m,n}`.

_FIXED = {codes.LITERAL, codes.NOT_LITERAL, codes.ANY, codes.IN, codes.AT}
_REPEATS = {codes.MAX_REPEAT, codes.MIN_REPEAT, codes.POSSESSIVE_REPEAT}


@dataclass(frozen=True, slots=True)
class Pattern:
    """A pattern, the longest text that it may be tried on, and what that costs."""

    compiled: re.Pattern[str]
    text_limit: int
    prices: tuple[int, ...]  # By the number of bits of the text's length.

    def price(self, text: str) -> int:
        """Say what a search in the text may cost at worst, in units of the record's budget."""
        return self.prices[min(len(text), self.text_limit).bit_length()]

    def find(self, text: str) -> str | None:
        """Give the first group of the first match, or all of it where the pattern has no group."""
        if len(text) > self.text_limit:
            raise WrongValueError(f"the text has more characters than this pattern allows, which is {self.text_limit}")
        found = self.compiled.search(text)
        return found and found.group(1 if self.compiled.groups else 0)


def compile_pattern(source: str) -> Pattern:
    """Raise ValueError, with a message for a person, for a pattern that is wrong or could run away."""
    if len(source) > PATTERN_LIMIT:
        raise ValueError(f"the pattern has {len(source)} characters; at most {PATTERN_LIMIT} are allowed")
    try:
        compiled = re.compile(source)
        tree = parser.parse(source)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"the pattern is not valid: {error}") from None
    text_limit = _longest_text(tree)
    lengths = [min(2**bits - 1, text_limit) for bits in range(text_limit.bit_length() + 1)]
    return Pattern(compiled, text_limit, tuple(_tries(tree, length) // TRIES_PER_UNIT for length in lengths))


def _longest_text(tree: Any) -> int:
    """Find by halving the longest text on which the pattern stays within its limit."""
    if _tries(tree, USEFUL_TEXT) > WAYS_LIMIT:
        raise ValueError("the pattern can be tried in too many ways")
    low, high = USEFUL_TEXT, TEXT_LIMIT
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if _tries(tree, middle) <= WAYS_LIMIT else (low, middle - 1)
    return low


def _tries(tree: Any, length: int) -> int:
    """Count the ways from every place where a search may begin."""
    anchored = len(tree) > 0 and tree[0] in ((codes.AT, codes.AT_BEGINNING), (codes.AT, codes.AT_BEGINNING_STRING))
    return _ways(tree, length) * (1 if anchored else length)


def _ways(tree: Any, length: int) -> int:
    """Bound the number of ways to try a sequence of nodes on a text of `length` characters."""
    ways = 1
    for code, argument in tree:
        ways = min(ways * _ways_of_node(code, argument, length), WAYS_LIMIT + 1)
    return ways


def _ways_of_node(code: object, argument: Any, length: int) -> int:
    if code in _FIXED:
        return 1
    if code is codes.SUBPATTERN:
        return _ways(argument[-1], length)
    if code is codes.BRANCH:
        return sum(_ways(branch, length) for branch in argument[1])
    if code in _REPEATS:
        least, most, body = argument
        return _ways_of_repeat(least, most, body, length)
    raise ValueError("the pattern uses a lookaround or a back reference, which can take too long")


def _ways_of_repeat(least: int, most: int, body: Any, length: int) -> int:
    """A repeat of one fixed body can only end in different places; any other repeat multiplies its body's ways."""
    endless = most is codes.MAXREPEAT
    if not endless and most > COUNT_LIMIT:
        raise ValueError(f"the pattern counts beyond {COUNT_LIMIT}")
    inner = _ways(body, length)
    if most == 1:
        return inner + 1
    if body.getwidth()[0] == 0:
        raise ValueError("the pattern repeats something that may be empty")
    ends = length + 1 if endless else most - least + 1
    if inner == 1:
        return int(min(ends, length + 1))
    if endless or most > 8:
        raise ValueError("the pattern repeats something that can itself match in several ways")
    return int(ends * inner**most)

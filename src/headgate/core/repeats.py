"""Failures that repeat are told in numbers.

A stream that waits for a server fails every minute for as long as the server is away. The first failure is news, and is
told at once. The same again is counted, and the count is told now and then: a minute after the first, and then ever
more seldom, four times as long each time and once a day at last. When it is over, that is told with the number of all.

What is *the same* is of one kind: it waits for the same thing, say, or has the same words. A failure of another kind is
told at once, too. But words may have a number in them that is another each time, so only a few kinds are kept apart;
those beyond are counted together.

What somebody did in between, such as a restart, makes it another matter: `about` names what the failures are failures
of. All that fails in a row about one matter is an *episode*.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace

FIRST_S = 60.0
GROWTH = 4.0
LONGEST_S = 86400.0
MOST_APART = 5
_OTHERS = object()  # All beyond.


@dataclass(frozen=True, slots=True)
class Told:
    """To be told now: how often it has happened, and since when."""

    count: int
    since_s: float


@dataclass(frozen=True, slots=True)
class Repeated:
    """One failure that has happened once or more often."""

    count: int
    since_s: float
    told_at_s: float
    pause_s: float = FIRST_S  # Until it is told again.


@dataclass(frozen=True, slots=True)
class Episode:
    """What has failed in a row."""

    about: Hashable = None
    kinds: Mapping[Hashable, Repeated] = field(default_factory=dict)


def failed(episode: Episode, about: Hashable, kind: Hashable, now_s: float) -> tuple[Episode, Told | None]:
    """It has failed in this way. None: there is nothing to tell now."""
    if episode.about != about:
        episode = Episode(about)
    kind = kind if kind in episode.kinds or len(episode.kinds) < MOST_APART else _OTHERS
    known = episode.kinds.get(kind)
    if known is None:
        return _with(episode, kind, Repeated(1, now_s, now_s)), Told(1, now_s)
    known = replace(known, count=known.count + 1)
    if now_s < known.told_at_s + known.pause_s:
        return _with(episode, kind, known), None
    later = replace(known, told_at_s=now_s, pause_s=min(LONGEST_S, known.pause_s * GROWTH))
    return _with(episode, kind, later), Told(known.count, known.since_s)


def is_new(episode: Episode, about: Hashable, kind: Hashable) -> bool:
    """Whether nothing of this kind has been told before."""
    return episode.about != about or kind not in episode.kinds


def over(episode: Episode) -> Told | None:
    """It is over. None: nothing had failed."""
    if not episode.kinds:
        return None
    kinds = episode.kinds.values()
    return Told(sum(one.count for one in kinds), min(one.since_s for one in kinds))


def _with(episode: Episode, kind: Hashable, repeated: Repeated) -> Episode:
    return replace(episode, kinds={**episode.kinds, kind: repeated})

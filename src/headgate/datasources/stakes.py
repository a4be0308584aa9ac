"""What a delete would lose, in words, for whoever has to say yes to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headgate.errors import Problem, Refused
from headgate.store.datasources import SecretUser, Stake
from headgate.text import counted

MOST_NAMED = 5  # Dumps, or users of a secret, in one line.


def counts_of(stake: Stake) -> dict[str, int]:
    """In numbers, for programs and for events."""
    return {"payloads": stake.payloads, "letters": stake.letters, "dumps": len(stake.dumps)}


def losses(payloads: int, letters: int, dumps: Sequence[str]) -> list[str]:
    """In words: `12 accepted payloads wait`. `dumps` are the ids of those that are not over."""
    found = []
    if payloads:
        found.append(f"{counted(payloads, 'accepted payload')} {'waits' if payloads == 1 else 'wait'}")
    if letters:
        found.append(f"{counted(letters, 'dead letter')} {'is' if letters == 1 else 'are'} open")
    if dumps:
        named = _some([id[:13] for id in dumps])
        found.append(f"{'dump' if len(dumps) == 1 else 'dumps'} {named} {'is' if len(dumps) == 1 else 'are'} not over")
    return found


def refused_deletes(stakes: Mapping[str, Stake]) -> Refused:
    """A delete of these datasources, by name, that nobody has said yes to."""
    problems = [
        Problem(name, text)
        for name, stake in stakes.items()
        for text in losses(stake.payloads, stake.letters, [str(id) for id in stake.dumps])
    ]
    numbers = [counts_of(stake) for stake in stakes.values()]
    return Refused(
        f"a delete would lose what {_some(list(map(repr, stakes)))} has not handled",
        code="would_lose",
        hint="see to it first, or say --yes",
        problems=problems,
        counts={what: sum(one[what] for one in numbers) for what in numbers[0]},
    )


def refused_secret(name: str, users: Sequence[SecretUser]) -> Refused:
    """A delete of a secret that something uses."""
    problems = [Problem(user.name, _use(user)) for user in users]
    return Refused(
        f"secret {name!r} is in use: {_some(list(dict.fromkeys(user.name for user in users)))}",
        code="in_use",
        hint="see to that first, or say --yes: what runs goes on until it next starts, and then fails",
        problems=problems,
        counts={
            "datasources": len({user.datasource for user in users}),
            "running": len({user.datasource for user in users if user.is_running}),
        },
    )


def _use(user: SecretUser) -> str:
    if user.status == "deleted":
        return f"is deleted, and the sink of version {user.version} is yet to be cleaned with it"
    status = "is the draft" if user.status == "draft" else f"is {user.status}"
    return f"version {user.version} {status}{', and runs now' if user.is_running else ''}"


def _some(names: Sequence[str]) -> str:
    few = ", ".join(names[:MOST_NAMED])
    return few if len(names) <= MOST_NAMED else f"{few} and {len(names) - MOST_NAMED} more"

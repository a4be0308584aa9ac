"""What a delete would lose, in words, for those who have to say yes to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headgate.core.stakes import losses, some
from headgate.errors import Problem, Refused
from headgate.store.datasources import SecretUser, Stake


def counts_of(stake: Stake) -> dict[str, int]:
    """In numbers, for programs and for events."""
    return {"payloads": stake.payloads, "letters": stake.letters, "dumps": len(stake.dumps)}


def refused_deletes(stakes: Mapping[str, Stake]) -> Refused:
    """A delete of these datasources, by name, that nobody has said yes to."""
    problems = [
        Problem(name, text)
        for name, stake in stakes.items()
        for text in losses(stake.payloads, stake.letters, [str(id) for id in stake.dumps])
    ]
    numbers = [counts_of(stake) for stake in stakes.values()]
    return Refused(
        f"a delete would lose what {some(list(map(repr, stakes)))} has not handled",
        code="would_lose",
        hint="see to it first, or say --yes",
        problems=problems,
        counts={what: sum(one[what] for one in numbers) for what in numbers[0]},
    )


def refused_secret(name: str, users: Sequence[SecretUser], *, is_told_with: bool = False) -> Refused:
    """A delete of a secret that something uses; `is_told_with`: a target of notifications does."""
    problems = [Problem(user.name, _use(user)) for user in users]
    if is_told_with:
        problems.append(Problem("notifications", "a target needs it"))
    return Refused(
        f"secret {name!r} is in use: {some(list(dict.fromkeys(one.path for one in problems)))}",
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

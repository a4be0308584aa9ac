"""A mistyped name is answered with one that is close to it, at a cost that does not grow with the number of names."""

from __future__ import annotations

import difflib

import pytest

from headgate.datasources import registry


def test_of_five_thousand_names_only_a_hundred_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each comparison holds the event loop up, and anyone who may look may ask for any name."""
    compared = []
    match = difflib.get_close_matches

    def counted(name: str, names: list[str], n: int) -> list[str]:
        compared.append(len(names))
        return match(name, names, n)

    monkeypatch.setattr(difflib, "get_close_matches", counted)
    names = {f"orders-{number:05d}-europe" for number in range(5000)}
    assert registry._no_datasource("orders-02500-eurpe", names).hint == "did you mean 'orders-02500-europe'?"
    assert registry._no_datasource("a", names).hint == "headgate ds list"
    assert registry._no_datasource("zzz", names).hint == "headgate ds list"
    assert max(compared) <= registry.MOST_COMPARED

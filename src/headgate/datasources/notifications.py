"""The document of notifications: targets that are told, and rules that say of what.

It is an admin's, like the lists of what may be reached, because a target is an address that nodes send to. Secrets
stand in it by name only, and only where an option is one. What is wrong with it is told all at once, with paths.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal, TypeAlias

from msgspec import json
from pydantic import AfterValidator, Field, SecretStr, model_validator

from headgate.connectors.api import Options
from headgate.connectors.guard import Guard
from headgate.connectors.http import check_url
from headgate.connectors.places import Place, place_of_path, places_of_url
from headgate.connectors.smtp import PORTS, Tls
from headgate.core.incidents import IncidentRule
from headgate.core.reach import Kind
from headgate.datasources.prepared import Label, options_of
from headgate.datasources.references import Secrets, is_reference, secret_names
from headgate.errors import ConfigError, NotFound, Problem
from headgate.ids import NAME
from headgate.text import has_zero_byte, parse_duration

ROOT = "notifications"
MOST_BYTES = 100_000
MOST = 50  # Targets, rules, and what either names.
_ADDRESS = re.compile(r"[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]{1,64}@[A-Za-z0-9-]{1,63}(\.[A-Za-z0-9-]{1,63}){0,9}")
_PATTERN = re.compile(r"[a-z0-9_*-]{1,100}")


def _duration(text: str) -> str:
    if not 0 <= parse_duration(text) <= 86400.0:
        raise ValueError("must be a day at most")
    return text


def _address(text: str) -> str:
    if not _ADDRESS.fullmatch(text):
        raise ValueError("must be an address such as ops@example.com")
    return text


def _pattern(text: str) -> str:
    if not _PATTERN.fullmatch(text):
        raise ValueError("must be a datasource's name, in which * stands for any text")
    return text


def _name(text: str) -> str:
    if not NAME.fullmatch(text):
        raise ValueError("must be lower-case letters, digits, - and _")
    return text


def _secret_url(value: SecretStr) -> SecretStr:
    check_url(value.get_secret_value())
    return value


def _one_line(value: SecretStr) -> SecretStr:
    if not value.get_secret_value().isprintable() or not value.get_secret_value():
        raise ValueError("must be one line of text")
    return value


Duration: TypeAlias = Annotated[str, AfterValidator(_duration)]
Address: TypeAlias = Annotated[str, AfterValidator(_address)]
Pattern: TypeAlias = Annotated[str, AfterValidator(_pattern)]
Name: TypeAlias = Annotated[str, AfterValidator(_name)]
Url: TypeAlias = Annotated[SecretStr, AfterValidator(_secret_url)]
Secret: TypeAlias = Annotated[SecretStr, AfterValidator(_one_line)]
HealthName: TypeAlias = Literal["error", "no_node", "degraded", "starting", "paused", "stopped", "ended"]


# Targets.


class WebhookTarget(Options):
    """A URL that gets JSON."""

    type: Literal["webhook"]
    url: Url = Field(description="Where to POST. A secret if it says how to get in.")
    secret: Secret | None = Field(None, description="Signs each message with HMAC-SHA256.")
    ca_file: str | None = Field(None, description="The authority of the server's certificate, in PEM.")


class SlackTarget(Options):
    """An incoming webhook of Slack, or of what speaks like it (Mattermost, Rocket.Chat, Discord with /slack)."""

    type: Literal["slack"]
    url: Url = Field(description="The webhook's URL: always a secret, since who knows it can write there.")
    ca_file: str | None = Field(None, description="The authority of the server's certificate, in PEM.")


class EmailTarget(Options):
    """E-mail by SMTP."""

    type: Literal["email"]
    host: str = Field(min_length=1, max_length=253, pattern=r"^[A-Za-z0-9.:_-]+$", description="The server.")
    port: int | None = Field(None, ge=1, le=65535, description="Default: 587, with `tls: tls` 465, with `none` 25.")
    tls: Tls = Field("starttls", description="starttls, tls (from the beginning) or none.")
    user: str | None = Field(None, min_length=1, max_length=254, description="To authenticate as.")
    password: Secret | None = Field(None, description="To authenticate with.")
    sender: Address = Field(alias="from", description="The address that it comes from.")
    to: list[Address] = Field(min_length=1, max_length=MOST, description="The addresses that it goes to.")
    ca_file: str | None = Field(None, description="The authority of the server's certificate, in PEM.")

    @model_validator(mode="after")
    def _together(self) -> EmailTarget:
        if (self.user is None) != (self.password is None):
            raise ValueError("`user` and `password` go together")
        if self.password is not None and self.tls == "none":
            raise ValueError("a password is not sent in the clear: `tls` must be starttls or tls")
        return self

    @property
    def at_port(self) -> int:
        """The port, said or not."""
        return self.port or PORTS[self.tls]


Target: TypeAlias = WebhookTarget | SlackTarget | EmailTarget


# Rules.


class RuleOptions(Options):
    """What all rules have."""

    hold: Duration = Field("1m", alias="for", description="How long it must hold before it is told, and be away.")
    to: list[Name] = Field(min_length=1, max_length=MOST, description="The targets to tell.")


class DatasourceRule(RuleOptions):
    """What rules about datasources have."""

    datasources: list[Pattern] = Field(
        ["*"], min_length=1, max_length=MOST, description="Names, in which * stands for any text. Default: all."
    )
    labels: list[Label] = Field(
        [], max_length=MOST, description="Labels of which a datasource must have one. Default: it needs none."
    )


class HealthRule(DatasourceRule):
    """A datasource has one of these healths."""

    when: Literal["health"]
    health: list[HealthName] = Field(["error", "no_node"], min_length=1, description="Which. Default: error, no_node.")


class LettersRule(DatasourceRule):
    """A datasource has more open dead letters than this."""

    when: Literal["dead_letters"]
    above: int = Field(0, ge=0, le=10**12, description="How many are still too few to tell.")


class LagRule(DatasourceRule):
    """A datasource lags by more than this."""

    when: Literal["lag"]
    above: Duration = Field(description="Such as 5m.")


class RejectedRule(DatasourceRule):
    """The published version of a datasource was tried and rejected."""

    when: Literal["rejected"]


class NodeRule(RuleOptions):
    """A node was found dead, and has not come back under its name. After a day it counts as gone for good."""

    when: Literal["node_lost"]


AnyRule: TypeAlias = HealthRule | LettersRule | LagRule | RejectedRule | NodeRule


class Targets(Options):
    """Who can be told."""

    targets: dict[Name, Annotated[Target, Field(discriminator="type")]] = Field(
        default_factory=dict, max_length=MOST, description="Those that can be told, by name."
    )


class Rules(Options):
    """Of what to tell."""

    rules: dict[Name, Annotated[AnyRule, Field(discriminator="when")]] = Field(
        default_factory=dict, max_length=MOST, description="Of what to tell, by name."
    )


class Document(Rules, Targets):
    """Who is told of what."""


def check(raw: Any, secrets: Secrets, guard: Guard) -> None:
    """Raise ConfigError with everything that is wrong with a document."""
    if not isinstance(raw, dict):
        raise ConfigError([Problem(ROOT, "must be an object", "targets: {…}, rules: {…}")])
    text = json.encode(raw)
    if has_zero_byte(text) or len(text) > MOST_BYTES:
        raise ConfigError([Problem(ROOT, f"must have no zero byte, and {MOST_BYTES:,} bytes at most")])
    problems: list[Problem] = []
    found = options_of(Document, raw, secrets, ROOT, problems)
    problems += _bare_urls(raw)
    if isinstance(found, Document) and not problems:
        problems += _unknown_targets(found) + _out_of_reach(found, guard)
    if problems:
        raise ConfigError(problems)


def rules_of(raw: Any) -> dict[str, IncidentRule]:
    """The rules of a document that was checked once."""
    found = Rules.model_validate({"rules": raw.get("rules", {})})
    return {name: _rule(name, one) for name, one in found.rules.items()}


def target_of(raw: Any, name: str, secrets: Secrets) -> Target:
    """One target of a document that was checked once, secrets included. Raises NotFound, or ConfigError if a secret is
    gone or has become wrong since."""
    targets = raw.get("targets", {}) if isinstance(raw, dict) else {}
    if name not in targets:
        raise NotFound(f"there is no target {name!r}", hint="headgate notifications list")
    problems: list[Problem] = []
    found = options_of(Targets, {"targets": {name: targets[name]}}, secrets, ROOT, problems)
    if problems or not isinstance(found, Targets):
        raise ConfigError(problems)
    return found.targets[name]


def names_in(raw: Any) -> list[str]:
    """The secrets that it names."""
    return sorted(secret_names(raw))


def users_of_secrets(raw: Any) -> dict[str, list[str]]:
    """The targets that name each secret, by their places in the document: no datasource has a dot in its name."""
    found: dict[str, list[str]] = {}
    targets = raw.get("targets") if isinstance(raw, dict) else None
    for name, one in targets.items() if isinstance(targets, dict) else ():
        for secret in sorted(secret_names(one)):
            found.setdefault(secret, []).append(f"{ROOT}.targets.{name}")
    return found


def _bare_urls(raw: Any) -> Iterator[Problem]:
    """The URL of a Slack webhook is a password, whatever it looks like."""
    targets = raw.get("targets")
    for name, one in targets.items() if isinstance(targets, dict) else ():
        if isinstance(one, dict) and one.get("type") == "slack" and "url" in one and not is_reference(one["url"]):
            hint = "headgate secrets set NAME, then {$secret: NAME}"
            yield Problem(f"{ROOT}.targets.{name}.url", "must be a secret: who knows it can write there", hint)


def _unknown_targets(found: Document) -> list[Problem]:
    known = ", ".join(sorted(found.targets)) or "none"
    return [
        Problem(f"{ROOT}.rules.{name}.to.{index}", f"there is no target {target!r}", f"targets: {known}")
        for name, rule in found.rules.items()
        for index, target in enumerate(rule.to)
        if target not in found.targets
    ]


def _out_of_reach(found: Document, guard: Guard) -> list[Problem]:
    problems = []
    for name, target in found.targets.items():
        for place in _places(target):
            if (error := guard.problem(place)) is not None:
                problems.append(Problem(f"{ROOT}.targets.{name}.{place.option}", error.message, error.hint))
    return problems


def _places(target: Target) -> list[Place]:
    files = [] if target.ca_file is None else [place_of_path(target.ca_file, "ca_file")]
    if isinstance(target, EmailTarget):
        return [Place(Kind.ADDRESS, target.host, target.at_port, "host"), *files]
    return [*places_of_url(target.url.get_secret_value(), option="url"), *files]


def _rule(name: str, options: AnyRule) -> IncidentRule:
    above = getattr(options, "above", 0)
    return IncidentRule(
        name,
        options.when,
        tuple(dict.fromkeys(options.to)),
        parse_duration(options.hold),
        tuple(getattr(options, "datasources", ("*",))),
        tuple(getattr(options, "labels", ())),
        tuple(getattr(options, "health", ())),
        parse_duration(above) if isinstance(above, str) else float(above),
    )

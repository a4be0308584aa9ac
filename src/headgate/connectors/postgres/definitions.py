"""From the entries of a `pg_dump` archive to definitions: which are wanted, what each is called, and when it is made.

The order of the archive is one in which everything can be made, and it says what each entry needs. Keys and indexes are
made as soon as their table is full; what is about several tables, or would act on rows (foreign keys, triggers, rules,
policies), when all rows are there. Owners follow their object at once, so that whatever the server runs for an object
later (an index's function, a view's query) runs with that owner's rights. Grants come late: some take rights from the
owner. Materialized views are filled after the grants that their queries may need, and event triggers come last, or they
would act on what we do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from headgate.connectors.api.bulk import Excuse
from headgate.connectors.api.whole import Definition, Left, Moment, Wanted
from headgate.connectors.postgres.archive import Entry, Section
from headgate.connectors.postgres.chosen import RELATIONS, chosen
from headgate.connectors.sql.quoting import quoted

# Entries that are not objects of the database, but settings of a session, or the database itself.
_SETTINGS = ("ENCODING", "STDSTRINGS", "SEARCHPATH", "DATABASE", "DATABASE PROPERTIES")
_EARLY = ("INDEX", "CONSTRAINT", "INDEX ATTACH", "STATISTICS")
_LOCKING = ("CONSTRAINT", "FK CONSTRAINT", "CHECK CONSTRAINT", "ROW SECURITY", "POLICY", "RULE", "TRIGGER")
_OF_RIGHTS = ("ACL", "DEFAULT ACL")
# What an object's owner can be changed of.
_OWNED = {
    "AGGREGATE",
    "COLLATION",
    "CONVERSION",
    "DOMAIN",
    "EVENT TRIGGER",
    "FOREIGN DATA WRAPPER",
    "FOREIGN TABLE",
    "FUNCTION",
    "MATERIALIZED VIEW",
    "OPERATOR",
    "OPERATOR CLASS",
    "OPERATOR FAMILY",
    "PROCEDURAL LANGUAGE",
    "PROCEDURE",
    "PUBLICATION",
    "SCHEMA",
    "SEQUENCE",
    "SERVER",
    "STATISTICS",
    "SUBSCRIPTION",
    "TABLE",
    "TEXT SEARCH CONFIGURATION",
    "TEXT SEARCH DICTIONARY",
    "TYPE",
    "VIEW",
}
_WORDS = {
    "ACL": "privileges",
    "CHECK CONSTRAINT": "check",
    "DEFAULT ACL": "default privileges",
    "FK CONSTRAINT": "foreign key",
    "INDEX ATTACH": "part of an index",
    "MATERIALIZED VIEW DATA": "contents of a materialized view",
    "SEQUENCE OWNED BY": "owning column of a sequence",
    "STATISTICS": "extended statistics",
    "TABLE ATTACH": "partition",
}


def definitions_of(
    entries: Sequence[Entry], wanted: Wanted, tables: Mapping[tuple[str, str], str]
) -> tuple[list[Definition], list[Left]]:
    """The definitions that are wanted, and what is left out because it needs what was excluded. `tables`: the name of
    each table that rows go into, by schema and name."""
    objects = [one for one in entries if not _is_of_database(one) and (wanted.privileges or one.kind not in _OF_RIGHTS)]
    if not wanted.data:
        objects = [one for one in objects if one.kind != "MATERIALIZED VIEW DATA"]
    kept, removed = chosen(objects, wanted)
    by_number = {one.number: one for one in kept}
    made: list[Definition] = []
    moments: dict[int, Moment] = {}
    last = max((one.number for one in entries), default=0)
    for one in kept:
        moments[one.number] = _moment(one, moments)
        made.append(_definition(one, by_number, moments[one.number], tables))
        if wanted.owners and one.owner and one.kind in _OWNED and (changed := _owner_of(one)):
            last += 1
            name = f"{one.kind.lower()} {_said(one.schema, one.tag)}"
            made.append(
                Definition(
                    last, "owner", name, "", made[-1].moment, changed, (one.number,), made[-1].tables, owner=one.owner
                )
            )
    left = [left_of(one, {each.number: each for each in objects}, why) for one, why in removed]
    return made, left


def _is_of_database(one: Entry) -> bool:
    about = one.kind in ("ACL", "COMMENT", "SECURITY LABEL") and one.tag.startswith("DATABASE ")
    return about or one.kind in _SETTINGS or one.section == Section.DATA


def _moment(one: Entry, moments: Mapping[int, Moment]) -> Moment:
    if one.kind in _OF_RIGHTS:
        return Moment.AFTER
    if one.section == Section.PRE_DATA:
        return Moment.BEFORE
    if one.section == Section.NONE:  # A remark: as soon as what it is about is there.
        later = [moments[number] for number in one.needs if number in moments]
        return Moment.AFTER if any(moment is not Moment.BEFORE for moment in later) else Moment.BEFORE
    return Moment.FULL if one.kind in _EARLY else Moment.AFTER


def _definition(
    one: Entry, entries: Mapping[int, Entry], moment: Moment, tables: Mapping[tuple[str, str], str]
) -> Definition:
    needed = [entries[number] for number in one.needs if number in entries]
    about = [tables[each.schema, each.tag] for each in needed if (each.schema, each.tag) in tables]
    name, of = _names(one, needed)
    settings = [("default_tablespace", one.tablespace)] if one.tablespace else []
    if one.access_method:
        settings.append(("default_table_access_method", one.access_method))
    return Definition(
        number=one.number,
        kind=kind_of(one),
        name=name,
        of=of,
        moment=moment,
        statement=one.sql,
        needs=tuple(each.number for each in needed),
        tables=tuple(about) if moment is not Moment.BEFORE else (),
        alone=one.kind in _LOCKING,
        settings=tuple(settings),
    )


def ordered(made: Sequence[Definition], entries: Sequence[Entry]) -> list[Definition]:
    """The same with contents of materialized views after all grants, and event triggers after all else."""
    by_number = {one.number: one.kind for one in entries}
    kinds = {one.number: by_number.get(one.number, "") for one in made}
    rights = tuple(number for number, kind in kinds.items() if kind in _OF_RIGHTS)
    triggers = {number for number, kind in kinds.items() if kind == "EVENT TRIGGER"}
    triggers |= {one.number for one in made if any(number in triggers for number in one.needs)}
    others = tuple(number for number in kinds if number not in triggers)
    first: list[Definition] = []
    last: list[Definition] = []
    for one in made:
        if one.number in triggers:
            last.append(_needing(one, others))
        elif kinds[one.number] == "MATERIALIZED VIEW DATA":
            first.append(_needing(one, rights))
        else:
            first.append(one)
    return first + last


def _needing(one: Definition, more: tuple[int, ...]) -> Definition:
    return replace(one, needs=one.needs + more, moment=Moment.AFTER)


def _owner_of(one: Entry) -> str:
    """The statement that gives an object to its owner. How it is called stands in the statement that drops it."""
    drop = one.drop.strip().removesuffix(";")
    return f"ALTER {drop.removeprefix('DROP ')} OWNER TO {quoted(one.owner)}" if drop.startswith("DROP ") else ""


# In words.


def kind_of(one: Entry) -> str:
    """What an entry is."""
    return _WORDS.get(one.kind, one.kind.lower())


def left_of(one: Entry, entries: Mapping[int, Entry], why: str) -> Left:
    """That an entry is not made because of something that was excluded."""
    name, of = _names(one, [entries[number] for number in one.needs if number in entries])
    return Left(kind_of(one), name, of, why, Excuse.ASKED)


def _names(one: Entry, needed: Iterable[Entry]) -> tuple[str, str]:
    """What it is called, and the table that it belongs to. A tag begins with the table's name where that tells several
    apart."""
    relations = [each for each in needed if each.kind in RELATIONS and each.kind != "SEQUENCE"]
    for each in relations:
        if one.tag.startswith(f"{each.tag} "):
            return one.tag.removeprefix(f"{each.tag} "), _said(each.schema, each.tag)
    if one.kind in ("INDEX", "TABLE ATTACH", "INDEX ATTACH") and relations:
        return one.tag, _said(relations[0].schema, relations[0].tag)
    if one.kind in ("ROW SECURITY", "ACL", "COMMENT"):
        return one.tag, ""
    return _said(one.schema, one.tag), ""


def _said(schema: str, name: str) -> str:
    return f"{schema}.{name}" if schema and schema != "public" else name

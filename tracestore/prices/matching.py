"""The rows of a price table that may price a model, in order, each with the rule by which it was found.

A model has up to four names. The provider says which model it ran, and the caller asked for a model. Each of these
two has a name under the adapter and a name under the provider whose prices apply (`priced_as`). For each name, the
rows are tried in this order:

    1. rows for exactly this ``provider:name``;
    2. rows for the target of the first alias that fits (an alias without ``*`` before those with it);
    3. rows for the name without the date at its end (``-2025-08-06`` or ``-20250806``), and for its aliases;
    4. if there are none so far: rows for the targets of aliases of whole providers (``azure:*`` is ``openai:*``);
    5. rows with ``*``, the one with more literal characters first.

A user's rows go before those of a reference table, whatever their rule. Among the user's rows, the adapter's own
name goes first. Among the reference's rows, the provider's name goes first, because an adapter may have any name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import msgspec

from .rows import PriceAlias, PriceRow

_DATED = re.compile(r"[-@](?:\d{4}-\d{2}-\d{2}|\d{8})$")
_CACHE_SIZE = 4096
_MOST_NAMES = 12  # that aliases may lead to from one name; more is a circle


class Match(msgspec.Struct, frozen=True):
    """A row that may price a model."""

    row: PriceRow
    """The row."""
    rule: str
    """The way in which the row was found, in words."""


class Matcher:
    """The rows and aliases of one table, indexed."""

    def __init__(self, rows: Iterable[PriceRow], aliases: tuple[PriceAlias, ...]) -> None:
        exact: dict[str, list[PriceRow]] = {}
        patterns: dict[str, list[PriceRow]] = {}
        for row in rows:
            (patterns if "*" in row.model else exact).setdefault(row.model, []).append(row)
        self._exact = exact
        self._patterns = [
            (pattern.split("*"), patterns[pattern]) for pattern in sorted(patterns, key=_specificity)
        ]
        self._plain: dict[str, str] = {}
        self._starred: dict[str, list[tuple[list[str], PriceAlias]]] = {}  # by provider; "" is for any
        for alias in aliases:
            pattern = alias.pattern.lower()
            if "*" in pattern:
                provider = pattern.partition(":")[0]
                key = "" if "*" in provider else provider
                self._starred.setdefault(key, []).append((pattern.split("*"), alias))
            else:
                self._plain.setdefault(pattern, alias.target)
        self._cache: dict[tuple[str, str | None, str | None], tuple[Match, ...]] = {}

    def matches(self, model: str, served_model: str | None, priced_as: str | None) -> tuple[Match, ...]:
        """All rows that may price a model at any time, size and tier, the first in rank first."""
        key = (model, served_model, priced_as)
        found = self._cache.get(key)
        if found is None:
            if len(self._cache) >= _CACHE_SIZE:
                self._cache.clear()
            found = self._cache[key] = tuple(self._ranked(*key))
        return found

    def _ranked(self, model: str, served_model: str | None, priced_as: str | None) -> list[Match]:
        own = [match for name in _names(model, model, served_model) for match in self._search(name)]
        if priced_as is None:
            listed = [*own]
        else:
            other = [match for name in _names(priced_as, model, served_model) for match in self._search(name)]
            listed = [match for match in own if not match.row.reference]
            listed += [*other, *(match for match in own if match.row.reference)]
        return sorted(listed, key=lambda match: match.row.reference)

    def _search(self, name: str) -> Iterator[Match]:
        # Within a group the last row goes first: that for the tier itself, for its hours, for the larger size.
        chain = self._all_names(name)
        for step, how in chain.items():
            for row in reversed(self._exact.get(step, ())):
                yield Match(row, how or "this name")
        for step, how in chain.items():
            text = step.lower()
            for parts, rows in self._patterns:
                if fits([part.lower() for part in parts], text):
                    yield from (Match(row, f"{how}, pattern".removeprefix(", ")) for row in reversed(rows))

    def _all_names(self, name: str) -> dict[str, str]:
        """A name and the names that it leads to, each with the way to it, until one of them has rows."""
        names: dict[str, str] = {}
        waiting = [(name, "")]
        while waiting and len(names) < _MOST_NAMES:
            own = dict(self._chain(*waiting.pop(0), set(names)))
            names |= own
            if any(step in self._exact for step in own):
                break
            for step, how in own.items():
                for parts, alias in self._aliases_with_star(step):
                    if "*" in alias.target and fits(parts, step.lower()):
                        target = alias.target.replace("*", _covered(parts, step))
                        waiting.append((target, _then(how, f"alias {alias.pattern} is {target}")))
        return names

    def _chain(self, name: str, how: str, seen: set[str]) -> Iterator[tuple[str, str]]:
        """The same, by the aliases for one model and by leaving out the date."""
        if name in seen or len(seen) >= _MOST_NAMES:
            return
        seen.add(name)
        yield name, how
        fixed = self._fixed_alias(name)
        if fixed is not None:
            pattern, target = fixed
            yield from self._chain(target, _then(how, f"alias {pattern} is {target}"), seen)
        undated = _DATED.sub("", name)
        if undated != name:
            yield from self._chain(undated, _then(how, f"{undated} without its date"), seen)

    def _fixed_alias(self, name: str) -> tuple[str, str] | None:
        text = name.lower()
        if text in self._plain:
            return text, self._plain[text]
        for parts, alias in self._aliases_with_star(name):
            if "*" not in alias.target and fits(parts, text):
                return alias.pattern, alias.target
        return None

    def _aliases_with_star(self, name: str) -> tuple[tuple[list[str], PriceAlias], ...]:
        provider = name.lower().partition(":")[0]
        return (*self._starred.get(provider, ()), *self._starred.get("", ()))


def _then(how: str, step: str) -> str:
    return f"{how}, {step}" if how else step


def fits(parts: list[str], text: str) -> bool:
    """Whether a text is a pattern's: `parts` is what stands between its stars."""
    if len(parts) == 1:
        return text == parts[0]
    first, *middle, last = parts
    if len(text) < len(first) + len(last) or not (text.startswith(first) and text.endswith(last)):
        return False
    at, end = len(first), len(text) - len(last)
    for part in middle:
        found = text.find(part, at, end)
        if found < 0:
            return False
        at = found + len(part)
    return True


def _covered(parts: list[str], name: str) -> str:
    """What the star of a pattern with one star stands for."""
    return name[len(parts[0]) : len(name) - len(parts[-1])] if len(parts) == 2 else ""


def _names(under: str, model: str, served_model: str | None) -> list[str]:
    """What a call is known by under one provider, the first in rank first: the served model is what is billed."""
    provider = under.partition(":")[0]
    if not served_model:
        return [under]
    served = served_model.removeprefix(model.partition(":")[0] + ":").removeprefix(provider + ":")
    full = f"{provider}:{served}"
    return [under] if full == under else [full, under]


def _specificity(pattern: str) -> tuple[int, str]:
    return (-len(pattern.replace("*", "")), pattern)

"""The table of a provider's models, a JSON file in its folder.

The file changes monthly, without the code. It has the date and source of its facts, and lists the models, the best
first. `like` maps unlisted names to a listed model with the same facts. The file is read at the first lookup. A
name that is neither listed nor like a listed one is sent unchanged, with unknown facts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cached_property
from typing import Generic, TypeVar

import msgspec

from callboard.bus.files import package_data

from .contract import AdapterCapabilities

FILE_NAME = "models.json"

_SNAPSHOT = re.compile(r"[-@](?:\d{8}|\d{4}-\d{2}-\d{2}|\d{3}|latest|preview-\d{2}-\d{2,4})$")


class ModelRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One model. Limits are in tokens, and dates are YYYY-MM-DD. None means unknown."""

    id: str
    """The provider's name of the model."""
    display_name: str
    context_window: int | None
    """The tokens of input and output together."""
    max_output: int | None
    aliases: tuple[str, ...] = ()
    """Callboard's short names of the model."""
    also: tuple[str, ...] = ()
    """Further names that the provider has for the model."""
    general: bool = True
    released: str | None = None
    deprecated: bool = False
    """Whether the provider advises against the model."""
    retires: str | None = None
    images: bool = True
    tools: bool = True
    structured: bool = True
    """Whether the model enforces a schema on its reply."""

    @property
    def reasons(self) -> bool:
        """Whether the model can think before it answers."""
        raise NotImplementedError

    def within(self, capabilities: AdapterCapabilities) -> AdapterCapabilities:
        """The capabilities of an adapter, limited to those of the model."""
        window = capabilities.max_context_tokens if self.context_window is None else self.context_window
        output = capabilities.max_output_tokens if self.max_output is None else self.max_output
        return msgspec.structs.replace(
            capabilities,
            supports_images=capabilities.supports_images and self.images,
            supports_thinking=capabilities.supports_thinking and self.reasons,
            supports_tools=capabilities.supports_tools and self.tools,
            supports_tool_choice=capabilities.supports_tool_choice and self.tools,
            supports_parallel_tool_calls=capabilities.supports_parallel_tool_calls and self.tools,
            supports_streaming_tool_calls=capabilities.supports_streaming_tool_calls and self.tools,
            supports_structured_output=capabilities.supports_structured_output and self.structured,
            max_context_tokens=window,
            max_output_tokens=output,
        )


Row = TypeVar("Row", bound=ModelRow)


class ModelFile(msgspec.Struct, Generic[Row], frozen=True, kw_only=True, forbid_unknown_fields=True):
    date: str
    source: str
    models: tuple[Row, ...]
    """The models, the best first."""
    like: tuple[tuple[str, str], ...] = ()
    """Patterns of unlisted names, each with the listed model that has the same facts. The first match counts."""


class ModelTable(Generic[Row]):
    """The table in a provider's folder, read at its first use.

    Any use raises msgspec.ValidationError or ValueError if the file is invalid.
    """

    def __init__(self, module: str, kind: type[ModelFile[Row]]) -> None:
        """Store the file's name without reading it."""
        self._module = module
        self._kind = kind

    @cached_property
    def file(self) -> ModelFile[Row]:
        return msgspec.json.decode(package_data(self._module, FILE_NAME), type=self._kind)

    @property
    def rows(self) -> tuple[Row, ...]:
        return self.file.models

    @cached_property
    def _names(self) -> Mapping[str, Row]:
        names: dict[str, Row] = {}
        for row in self.rows:
            for name in (row.id, *row.also):
                if names.setdefault(name, row) is not row:
                    raise ValueError(f"{self._module}: two models are called {name!r}")
        return names

    @cached_property
    def _aliases(self) -> Mapping[str, Row]:
        aliases: dict[str, Row] = {}
        for row in self.rows:
            for alias in row.aliases:
                if alias in self._names or aliases.setdefault(alias, row) is not row:
                    raise ValueError(f"{self._module}: two models are called {alias!r}")
        return aliases

    @cached_property
    def _like(self) -> tuple[tuple[re.Pattern[str], Row], ...]:
        return tuple((re.compile(pattern), self._names[model]) for pattern, model in self.file.like)

    def listed(self, name: str) -> Row | None:
        """The model of a name, which may end in a date; None if it is not listed."""
        return self._names.get(name) or self._names.get(_SNAPSHOT.sub("", name))

    def by_alias(self, alias: str) -> Row | None:
        """The model of one of Callboard's short names; None if there is none."""
        return self._aliases.get(alias)

    def resembling(self, name: str) -> Row | None:
        """The model of a name, or the listed model with the same facts as an unlisted name."""
        return self.listed(name) or next((row for pattern, row in self._like if pattern.match(name)), None)

"""A template: a prompt with parameters, and how it is to be asked. Pure: files are `folder`'s.

A parameter stands as ``$name`` or ``${name}`` in `system` and `prompt`; ``$$`` is a dollar sign. What a caller
says goes where ``$input`` stands, or else below the prompt. Values are put in once: what looks like a parameter in
a value stays as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from string import Template as Pattern
from typing import Literal, NamedTuple

import msgspec

from callboard.bus import ConfigurationError
from callboard.bus.values.json import Json, JsonObject

INPUT = "input"
"""The parameter that is what the caller says."""


class Filled(NamedTuple):
    """A template with a value in place of each parameter."""

    prompt: str
    """The text to ask."""
    system: str | None
    """The system prompt; None if the template has none."""


class Template(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A template as its file says it. All parts may be left out."""

    name: str = ""
    """The name of the template."""
    description: str | None = None
    """A sentence for `callboard templates list`."""
    system: str | None = None
    """The system prompt, with parameters."""
    prompt: str | None = None
    """The prompt, with parameters; None asks what the caller says and nothing else."""
    model: str | None = None
    """The model to ask, by any of its names."""
    defaults: Mapping[str, str | int | float] = {}
    """The values of parameters for which the caller gives none."""
    options: Mapping[str, Json] = {}
    """Options of the call, such as ``temperature``."""
    schema: str | JsonObject | None = None
    """The schema of the reply: a JSON Schema, or its short form such as ``name, age int``."""
    tools: tuple[str, ...] = ()
    """The names of tools that the model may call."""
    extract: Literal["first", "last"] | None = None
    """The block of code that is the answer: the ``first`` or the ``last`` one. None is the whole reply."""

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names of the parameters, in the order of their first use. ``input`` is none of them."""
        found = (name for text in (self.system, self.prompt) if text is not None for name in _names(text))
        return tuple(dict.fromkeys(name for name in found if name != INPUT))

    def check(self) -> None:
        """Check what the types don't say.

        Raises:
            ConfigurationError: A text has a dollar sign that begins no parameter, or a default is of no parameter.
        """
        for field, text in (("system", self.system), ("prompt", self.prompt)):
            if text is not None and not Pattern(text).is_valid():
                raise ConfigurationError(f"{field}: a $ begins no parameter such as $name; a dollar sign is $$")
        for name in self.defaults:
            if name not in self.parameters:
                raise ConfigurationError(f"defaults.{name}: there is no ${name} in system or prompt")

    def filled(self, input: str, parameters: Mapping[str, str]) -> Filled:
        """The texts with a value in place of each parameter.

        Args:
            input: What the caller says, for ``$input``.
            parameters: The values of the other parameters; `defaults` has those that are left out.

        Raises:
            ConfigurationError: A parameter has no value, or a value has no parameter.
        """
        self._check_values(parameters)
        values = {**{name: str(value) for name, value in self.defaults.items()}, **parameters, INPUT: input}
        system = None if self.system is None else Pattern(self.system).substitute(values)
        if self.prompt is None:
            return Filled(input, system)
        prompt = Pattern(self.prompt).substitute(values)
        placed = INPUT in (*_names(self.prompt), *_names(self.system or ""))
        return Filled(prompt if placed or not input else f"{prompt.rstrip()}\n\n{input}", system)

    def _check_values(self, given: Mapping[str, str]) -> None:
        known = self.parameters
        missing = [name for name in known if name not in given and name not in self.defaults]
        if missing:
            raise ConfigurationError(
                f"template {self.name!r} needs a value for {', '.join(missing)}: -p {missing[0]} VALUE"
            )
        for name in given:
            if name not in known:
                raise ConfigurationError(
                    f"template {self.name!r} has no parameter {name!r}: they are {', '.join(known) or 'none'}"
                )


def _names(text: str) -> list[str]:
    return Pattern(text).get_identifiers()

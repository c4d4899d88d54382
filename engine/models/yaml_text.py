"""YAML to values and back. The library is imported when a file is there to be read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from callboard.bus import ConfigurationError

if TYPE_CHECKING:
    import yaml


def read_yaml(text: str, source: str) -> object:
    """The value that a YAML text has; None for an empty text.

    Args:
        text: The text.
        source: Where it comes from, for the error.

    Raises:
        ConfigurationError: It is no YAML. The error has the place of the fault and no word of the text, in which
            there may be a key.
    """
    import yaml

    try:
        found: object = yaml.safe_load(text)
        return found
    except yaml.YAMLError as error:
        fault = _describe_fault(error)
    # out here and without its cause, which quotes the line
    raise ConfigurationError(f"{source}: is no YAML: {fault}")


def _describe_fault(error: Exception) -> str:
    """The fault in the YAML, and its place, without a word of its text."""
    mark = getattr(error, "problem_mark", None)
    said = getattr(error, "problem", None) or type(error).__name__
    return f"line {mark.line + 1}, column {mark.column + 1}: {said}" if mark is not None else str(said)


def write_yaml(value: Mapping[str, object]) -> str:
    """The YAML of a mapping, in its order. A text of several lines stands there as one sees it."""
    import yaml

    class Dumper(yaml.SafeDumper):
        pass

    Dumper.add_representer(str, _text)
    written: str = yaml.dump(value, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=100)
    return written


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)

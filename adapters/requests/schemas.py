"""JSON Schemas of tools and replies, in the forms that providers accept. Pure.

`normalise_schema` changes the form of a schema, never its meaning. `move_to_description` removes the keywords
that a target lacks, and puts them into the description as text. `fold_root` makes one plain object of the unions
at the root of a tool's schema. `moonshot_schema` writes Moonshot's form. `encoded_tool` caches the JSON of a tool.
Strict mode is in `strict_schemas`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar, cast

import msgspec

from callboard.bus.errors import WarningCode
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.messages import CallWarning, ToolDefinition

from .content import as_text, encode_json

# --- Cached results ---

_T = TypeVar("_T")


def remembered(work: Callable[[JsonObject], _T]) -> Callable[[JsonObject], _T]:
    """Decorator: cache the latest 256 results of a function of a schema.

    Every call passes equal schemas again. The result for a schema that is not JSON is not cached. A result is
    shared, so it must not be changed.
    """

    @functools.lru_cache(maxsize=256)
    def by_text(schema: bytes) -> _T:
        return work(msgspec.json.decode(schema, type=JsonObject))

    @functools.wraps(work)
    def remembering(schema: JsonObject) -> _T:
        try:
            text = msgspec.json.encode(schema)
        except (TypeError, ValueError, OverflowError, RecursionError):
            return work(schema)
        return by_text(text)

    return remembering


# --- The common form, and keywords as text ---

_NOISE = frozenset({"$schema", "$anchor", "$comment", "$vocabulary", "def"})
"""Keywords that mean nothing to a model, including leftovers of schema generators. Keywords that start with ~ are
removed, too.
"""

_NAMED = ("properties", "patternProperties", "$defs", "dependentSchemas")
"""Keywords whose value is an object that contains schemas by name."""

_ONE = (
    *("items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames"),
    *("additionalItems", "unevaluatedItems", "unevaluatedProperties"),
)
_SEVERAL = ("anyOf", "oneOf", "allOf", "prefixItems", "items")

_WORDS = {
    "format": "format: {}",
    "pattern": "matching {}",
    "minimum": "at least {}",
    "maximum": "at most {}",
    "exclusiveMinimum": "greater than {}",
    "exclusiveMaximum": "less than {}",
    "multipleOf": "a multiple of {}",
    "minLength": "at least {} characters",
    "maxLength": "at most {} characters",
    "minItems": "at least {} items",
    "maxItems": "at most {} items",
    "minProperties": "at least {} properties",
    "maxProperties": "at most {} properties",
    "const": "always {}",
    "examples": "for example {}",
    "not": "nothing that matches {}",
    "contentEncoding": "encoded as {}",
    "contentMediaType": "of media type {}",
}


def normalise_schema(schema: JsonObject) -> JsonObject:
    """The same schema in the common form. Pure. Schemas inside definitions are included.

    ``definitions`` at the root become ``$defs``, and references are changed to match. Properties may have any
    name.
    """
    written = _normalised(schema)
    definitions = written.pop("definitions", None)
    if isinstance(definitions, dict):
        local = written.get("$defs")
        renamed: JsonObject = {name: _each(inner, _normalised) for name, inner in definitions.items()}
        written["$defs"] = {**renamed, **(local if isinstance(local, dict) else {})}
    return written


def _normalised(schema: JsonObject) -> JsonObject:
    keywords = {name: value for name, value in schema.items() if name not in _NOISE and not name.startswith("~")}
    reference = keywords.get("$ref")
    if isinstance(reference, str) and reference.startswith("#/definitions/"):
        keywords["$ref"] = "#/$defs/" + reference.removeprefix("#/definitions/")
    return map_subschemas(keywords, _normalised)


def map_subschemas(schema: JsonObject, change: Callable[[JsonObject], JsonObject]) -> JsonObject:
    """Copy a schema, and apply `change` to its direct subschemas."""
    changed = dict(schema)
    for name in _NAMED:
        if isinstance(named := changed.get(name), dict):
            changed[name] = {key: _each(inner, change) for key, inner in named.items()}
    for name in _ONE:
        if name in changed:
            changed[name] = _each(changed[name], change)
    for name in _SEVERAL:
        if isinstance(several := changed.get(name), list):
            changed[name] = [_each(inner, change) for inner in several]
    return changed


def without_booleans(schema: JsonObject) -> JsonObject:
    """A schema for targets that need an object for every schema. Pure.

    True, which allows anything, becomes an empty schema. False, which allows nothing, is removed.
    """
    changed = map_subschemas(schema, without_booleans)
    for name in _NAMED:
        if isinstance(named := changed.get(name), dict):
            changed[name] = {
                key: {} if inner is True else inner for key, inner in named.items() if inner is not False
            }
    for name in ("items", "contains", "propertyNames"):
        if isinstance(changed.get(name), bool):
            allows_any = changed.pop(name)
            changed |= {name: {}} if allows_any else {}
    for name in _SEVERAL:
        if isinstance(several := changed.get(name), list):
            changed[name] = [{} if inner is True else inner for inner in several if inner is not False]
    return changed


def _each(value: Json, change: Callable[[JsonObject], JsonObject]) -> Json:
    return change(value) if isinstance(value, dict) else value


def json_type(value: Json) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
        case _:
            return "object"


def move_to_description(schema: JsonObject, refused: Callable[[str, Json], bool]) -> JsonObject:
    """Remove the keywords that the target refuses, and add them as text to the schema's description. Pure.

    Inner schemas are unchanged.
    """
    moved = {name: value for name, value in schema.items() if name != "description" and refused(name, value)}
    if not moved:
        return schema
    keywords = {name: value for name, value in schema.items() if name not in moved}
    return describe(keywords, describe_constraints(moved))


def describe_constraints(constraints: JsonObject) -> Iterator[str]:
    """Constraints as text, a few words each. A constraint without effect is dropped."""
    for name, value in constraints.items():
        if value is None or value is False:
            continue
        if name == "uniqueItems":
            yield "unique items"
        else:
            yield _WORDS.get(name, f"{name}: {{}}").replace("{}", as_text(value))


def describe(schema: JsonObject, words: Iterable[str]) -> JsonObject:
    """A schema with text added to the end of its description. Pure."""
    added = "; ".join(words)
    if not added:
        return schema
    description = schema.get("description")
    return {
        **schema,
        "description": f"{description} ({added})" if isinstance(description, str) and description else added,
    }


def merge_all_of(schema: JsonObject) -> JsonObject:
    """Merge the allOf of a schema. Contradictory parts stay in allOf, and are later written as text."""
    parts = schema["allOf"]
    merged = {name: value for name, value in schema.items() if name != "allOf"}
    unmerged: list[Json] = []
    for part in parts if isinstance(parts, list) else [parts]:
        inner = merge_all_of(part) if isinstance(part, dict) and "allOf" in part else part
        if not isinstance(inner, dict) or not _join(merged, inner):
            unmerged.append(part)
    return describe(merged, describe_constraints({"allOf": unmerged})) if unmerged else merged


def _join(merged: JsonObject, part: JsonObject) -> bool:
    """Add a schema's constraints. Return False without a change if they contradict the earlier constraints."""
    joined: JsonObject = {}
    for name, value in part.items():
        before = merged.get(name)
        if name not in merged or before == value:
            joined[name] = value
        elif name == "required" and isinstance(before, list) and isinstance(value, list):
            joined[name] = [*before, *(entry for entry in value if entry not in before)]
        elif (
            name in ("properties", "$defs", "definitions") and isinstance(before, dict) and isinstance(value, dict)
        ):
            if any(before[key] != value[key] for key in before.keys() & value.keys()):
                return False
            joined[name] = {**before, **value}
        elif name in ("title", "description"):
            pass  # keep the outer constraint, which is more specific
        else:
            return False
    merged.update(joined)
    return True


def instruction(schema: JsonObject, *, with_tools: bool) -> str:
    """The instruction for a model that does not support this schema, or supports no schema."""
    when = "When you answer and call no tool, answer" if with_tools else "Answer"
    text = msgspec.json.encode(schema).decode()
    return (
        f"{when} with one JSON object only, without a code fence or any other text. "
        f"It holds the answer, not the schema, and follows this JSON Schema: {text}"
    )


# --- One object at the root ---

UNIONS = ("anyOf", "oneOf", "allOf")
"""The keywords that combine schemas."""

_OTHERS = ("enum", "not")
"""More keywords that are refused at the root. They are moved to the description as text."""

_REFUSED = frozenset((*UNIONS, *_OTHERS, "$ref"))

_MOST_REFERENCES = 16
"""The longest chain of references and nested unions that is followed. A longer chain is probably circular."""


class FoldedSchema(msgspec.Struct, frozen=True):
    schema: JsonObject
    """The schema, which is shared and must not be changed."""
    folded: tuple[str, ...]
    """The keywords that were folded; empty if the schema's meaning did not change."""

    def warnings(self, what: str) -> list[CallWarning]:
        if not self.folded:
            return []
        names = " and ".join(self.folded)
        message = (
            f"the schema of {what} has {names} at its root, which the server rejects. The alternatives "
            f"were merged into one object."
        )
        return [CallWarning(WarningCode.SCHEMA_FOLDED, message)]


def fold_root(schema: JsonObject) -> FoldedSchema:
    """Fold the unions at the root of a schema into one object. A plain object is returned unchanged."""
    if schema.get("type") == "object" and _REFUSED.isdisjoint(schema):
        return FoldedSchema(schema, ())
    return _fold(schema)


@remembered
def _fold(schema: JsonObject) -> FoldedSchema:
    written = normalise_schema(schema)
    definitions = written.get("$defs")
    by_name = definitions if isinstance(definitions, dict) else {}
    start = _resolved({name: value for name, value in written.items() if name != "$defs"}, by_name, 0)
    names = tuple(name for name in (*UNIONS, *_OTHERS) if name in start)
    found = _folded(start, by_name, 0)
    if found is None:  # no alternative is an object, but arguments must be one
        found = describe({"type": "object"}, describe_constraints({name: start[name] for name in names}))
    root: JsonObject = {**found, "type": "object"}
    if by_name:
        root["$defs"] = definitions
    return FoldedSchema(root, names)


def _resolved(schema: JsonObject, definitions: Mapping[str, Json], depth: int) -> JsonObject:
    """Replace the reference in a schema by its definition."""
    reference = schema.get("$ref")
    if not isinstance(reference, str) or depth > _MOST_REFERENCES:
        return schema
    name = reference.removeprefix("#/definitions/").removeprefix("#/$defs/")
    target = definitions.get(name)
    beside = {name: value for name, value in schema.items() if name not in ("$ref", "$defs", "definitions")}
    return _resolved({**target, **beside}, definitions, depth + 1) if isinstance(target, dict) else beside


def _folded(schema: JsonObject, definitions: Mapping[str, Json], depth: int) -> JsonObject | None:
    """One object schema for an object schema with unions. None if no object fits."""
    schema = _resolved(schema, definitions, 0)
    kind = schema.get("type", "object")
    if depth > _MOST_REFERENCES or (kind != "object" and not (isinstance(kind, list) and "object" in kind)):
        return None
    keywords = {name: value for name, value in schema.items() if name not in (*UNIONS, *_OTHERS)}
    keywords["type"] = "object"
    described: JsonObject = {name: schema[name] for name in _OTHERS if name in schema}
    for part in _schemas(schema.get("allOf")):
        inner = _folded(part, definitions, depth + 1)
        if inner is not None:
            keywords = _both(keywords, inner)
    for name in ("anyOf", "oneOf"):
        parts = _schemas(schema.get(name))
        if not parts:
            continue
        found = (_folded(part, definitions, depth + 1) for part in parts)
        alternatives = [part for part in found if part is not None]
        if not alternatives:
            if "properties" not in keywords:
                return None
            continue
        keywords = _both(keywords, _any_of(alternatives))
        keywords = describe(keywords, _forms(name, alternatives))
    return describe(keywords, describe_constraints(described))


def _both(one: JsonObject, other: JsonObject) -> JsonObject:
    """Combine two object schemas: both sets of constraints apply."""
    merged: JsonObject = {**other, **one}
    first, second = _properties(one), _properties(other)
    if first or second:
        merged["properties"] = {**first, **{name: _joint(first.get(name), second[name]) for name in second}}
    required = dict.fromkeys((*_names(one), *_names(other)))
    if required:
        merged["required"] = list(required)
    return merged


def _joint(one: Json, other: Json) -> Json:
    """Merge two schemas of one property. The first takes precedence."""
    if not isinstance(one, dict) or not one:
        return one if one is False else other
    if not isinstance(other, dict):
        return one
    if _values(one) is None and _values(other) is not None:
        return {**one, **other}
    return {**other, **one}


def _any_of(parts: list[JsonObject]) -> JsonObject:
    """Combine object schemas. The result allows every value that one of them allows."""
    merged: JsonObject = {"type": "object"}
    forms: dict[str, list[Json]] = {}
    for part in parts:
        for name, schema in _properties(part).items():
            variants = forms.setdefault(name, [])
            if schema not in variants:
                variants.append(schema)
    if forms:
        merged["properties"] = {name: _any(several) for name, several in forms.items()}
    required = [name for name in _names(parts[0]) if all(name in _names(part) for part in parts)]
    if required:
        merged["required"] = list[Json](required)
    if all(part.get("additionalProperties") is False for part in parts):
        merged["additionalProperties"] = False
    return merged


def _any(schemas: list[Json]) -> Json:
    """Combine schemas. The result allows every value that one of them allows."""
    if len(schemas) == 1:
        return schemas[0]
    values: list[Json] = []
    for schema in schemas:
        several = _values(schema)
        if several is None:
            break
        values += [value for value in several if value not in values]
    else:
        kinds = [schema.get("type") for schema in schemas if isinstance(schema, dict)]
        typed: JsonObject = (
            {"type": kinds[0]} if kinds[0] is not None and kinds.count(kinds[0]) == len(kinds) else {}
        )
        description = next((s["description"] for s in schemas if isinstance(s, dict) and "description" in s), None)
        return {**typed, "enum": values, **({} if description is None else {"description": description})}
    if any(schema is True or schema == {} for schema in schemas):
        return {}
    return {"anyOf": schemas}


def _values(schema: Json) -> list[Json] | None:
    """The values that a constant or an enum allows. None for any other schema."""
    if isinstance(schema, dict):
        if "const" in schema:
            return [schema["const"]]
        if isinstance(values := schema.get("enum"), list):
            return values
    return None


def _forms(keyword: str, parts: list[JsonObject]) -> Iterable[str]:
    """The alternatives as text: the properties of each, the required ones first."""
    described = []
    for part in parts:
        required = _names(part)
        words = [_name_and_value(name, _properties(part).get(name)) for name in required]
        optional = [name for name in _properties(part) if name not in required]
        if optional:
            words.append(f"optionally {', '.join(optional)}")
        if words:
            described.append(" with ".join([words[0], ", ".join(words[1:])]) if len(words) > 1 else words[0])
    described = list(dict.fromkeys(described))
    if len(described) > 1:
        how = "exactly one" if keyword == "oneOf" else "at least one"
        yield f"{how} of these forms: {' | '.join(described)}"


def _name_and_value(name: str, schema: Json) -> str:
    return f"{name}={schema['const']}" if isinstance(schema, dict) and "const" in schema else name


def _properties(schema: JsonObject) -> JsonObject:
    found = schema.get("properties")
    return found if isinstance(found, dict) else {}


def _names(schema: JsonObject) -> list[str]:
    found = schema.get("required")
    return [name for name in found if isinstance(name, str)] if isinstance(found, list) else []


def _schemas(value: Json) -> list[JsonObject]:
    """The schemas of a list. True becomes an empty schema, and False is removed."""
    parts = value if isinstance(value, list) else []
    return [part if isinstance(part, dict) else {} for part in parts if isinstance(part, dict) or part is True]


# --- Moonshot's form ---

_IMPLIED = (
    ("object", ("properties", "required", "additionalProperties", "patternProperties")),
    ("array", ("items", "prefixItems", "minItems", "maxItems", "uniqueItems")),
    ("string", ("minLength", "maxLength", "pattern", "format")),
    ("number", ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")),
)


@remembered
def moonshot_schema(schema: JsonObject) -> JsonObject:
    """Convert a schema to Moonshot's form. The result is shared, so it must not be changed."""
    return _typed(without_booleans(normalise_schema(schema)))


def _typed(schema: JsonObject) -> JsonObject:
    if "allOf" in schema:
        schema = merge_all_of(schema)
    alternatives = [*_schemas(schema.get("anyOf")), *_schemas(schema.get("oneOf"))]
    if alternatives:
        keywords = {name: value for name, value in schema.items() if name not in ("anyOf", "oneOf", "type")}
        schema = {**keywords, "anyOf": _distributed(alternatives, schema.get("type"))}
    elif "type" not in schema and "$ref" not in schema:
        schema = _with_type(schema)
    if isinstance(items := schema.get("items"), list):  # a schema for each position
        schema = {**{name: value for name, value in schema.items() if name != "items"}, "prefixItems": items}
    return map_subschemas(schema, _typed)


def _distributed(alternatives: list[JsonObject], kind: Json) -> list[Json]:
    """Give each alternative the parent's type if it has none."""
    return [
        part
        if kind is None or not {"type", "$ref", "anyOf", "oneOf", "enum", "const"}.isdisjoint(part)
        else {"type": kind, **part}
        for part in alternatives
    ]


def _with_type(schema: JsonObject) -> JsonObject:
    values = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if isinstance(values, list) and values:
        kinds = list(dict.fromkeys(json_type(value) for value in values))
        return {"type": kinds[0] if len(kinds) == 1 else list[Json](kinds), **schema}
    for kind, keywords in _IMPLIED:
        if any(name in schema for name in keywords):
            return {"type": kind, **schema}
    any_type = ("string", "number", "boolean", "object", "array", "null")  # an integer is a number
    return {**schema, "anyOf": [{"type": kind} for kind in any_type]}


# --- Tools ---


def encoded_tool(
    tool: ToolDefinition,
    form: str,
    write: Callable[[ToolDefinition], JsonObject],
    warnings: Sequence[CallWarning] = (),
) -> Json:
    """The JSON of a tool in one protocol, cached with the tool.

    A tool with provider fields, or with warnings, is not cached.

    Args:
        tool: The tool.
        form: The cache key. It must include everything besides the tool that the JSON depends on.
        write: A function that writes the tool and adds its warnings to `warnings`.
        warnings: The request's warnings.
    """
    encoded: Json = tool.__dict__.get(form)
    if encoded is None:
        warning_count = len(warnings)
        encoded = write(tool)
        if not tool.provider_options and len(warnings) == warning_count:
            encoded = tool.__dict__[form] = cast("Json", msgspec.Raw(encode_json(encoded)))
    return encoded


def plain_schema(tool: ToolDefinition) -> JsonObject:
    """The tool's schema without strict mode, in the common form."""
    return _normalised_once(tool.input_schema)


_normalised_once = remembered(normalise_schema)

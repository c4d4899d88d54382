"""Strict schemas: the additions of the rewriting are removed again, and unsupported schemas are refused."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callboard.adapters.requests.strict_schemas import NotStrict, to_strict, without_added_nulls
from callboard.bus.values.base import Json, JsonObject


def an_object(properties: JsonObject, *required: str, **fields: Json) -> JsonObject:
    return {"type": "object", "properties": properties, "required": list(required), **fields}


def prop(schema: JsonObject, **fields: Json) -> Json:
    """The strict form of an optional property of that schema."""
    strict = to_strict(an_object({"p": schema}, **fields)).schema
    properties = strict["properties"]
    assert isinstance(properties, dict)
    return properties["p"]


DEFINITION: JsonObject = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
CLOSED: JsonObject = {**DEFINITION, "additionalProperties": False}


@pytest.mark.parametrize(("schema", "expected"), [
    ({"type": "string", "title": "P", "default": "x"}, {"type": ["string", "null"]}),
    ({"type": ["string", "integer"]}, {"anyOf": [{"type": ["string", "integer"]}, {"type": "null"}]}),
    ({"type": ["string", "null"]}, {"type": ["string", "null"]}),
    ({"enum": ["a", "b"]}, {"type": ["string", "null"], "enum": ["a", "b", None]}),
    ({"enum": ["a", None]}, {"type": ["null", "string"], "enum": ["a", None]}),
    ({"const": 1}, {"anyOf": [{"const": 1, "type": "integer"}, {"type": "null"}]}),
    ({"$ref": "#/$defs/d"}, {"anyOf": [{"$ref": "#/$defs/d"}, {"type": "null"}]}),
    ({"$ref": "#/definitions/d"}, {"anyOf": [{"$ref": "#/$defs/d"}, {"type": "null"}]}),
    ({"$ref": "#/$defs/d", "description": "D"}, {"description": "D",
        "anyOf": [{"$ref": "#/$defs/d"}, {"type": "null"}]}),
    ({"oneOf": [{"type": "string"}]}, {"anyOf": [{"type": "string"}, {"type": "null"}]}),
    ({"anyOf": [{"type": "string"}, {"type": "null"}]}, {"anyOf": [{"type": "string"}, {"type": "null"}]}),
    ({"allOf": [{"type": "string"}], "description": "D"}, {"description": "D", "type": ["string", "null"]}),
    (DEFINITION, {"anyOf": [CLOSED, {"type": "null"}]}),
    ({"type": "array", "items": DEFINITION}, {"anyOf": [{"type": "array", "items": CLOSED}, {"type": "null"}]}),
])  # fmt: skip
def test_optional_becomes_nullable(schema: JsonObject, expected: JsonObject) -> None:
    """The schemas include references, enums and alternatives."""
    assert prop(schema, **{"$defs": {"d": DEFINITION}}) == expected


def test_definitions_are_strict_too() -> None:
    """Definitions are rewritten under their newer name, and may refer to themselves."""
    node = an_object({"next": {"$ref": "#/definitions/node"}}, **{"$anchor": "x", "~note": 1})
    strict = to_strict(an_object({"head": {"$ref": "#/definitions/node"}}, "head", definitions={"node": node}))
    assert strict.schema["$defs"] == {
        "node": {
            "type": "object",
            "properties": {"next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}},
            "required": ["next"],
            "additionalProperties": False,
        }
    }
    assert "definitions" not in strict.schema


def test_a_strict_schema_is_not_changed() -> None:
    """No null has to be removed from the reply."""
    assert not to_strict(an_object({"a": {"type": "string"}}, "a")).adds_nulls
    assert not to_strict(an_object({})).adds_nulls


@pytest.mark.parametrize("schema", [
    {"type": "object"},
    {"type": "object", "additionalProperties": True},
    {"type": "object", "properties": {}, "additionalProperties": {"type": "string"}},
    {"type": "object", "patternProperties": {"^x": {"type": "string"}}},
    {"type": "array"},
    {},
    True,
    {"not": {"type": "string"}},
    {"type": "array", "prefixItems": [{"type": "string"}]},
    {"allOf": [{"type": "string"}, {"minLength": 1}]},
    {"allOf": [{"type": "string"}], "type": "integer"},
    {"anyOf": [{"type": "string"}], "minLength": 1},
    {"$ref": "https://example.org/x"},
    {"$ref": "#/$defs/d/properties/n"},
    {"$ref": "#/$defs/d", "minLength": 1},
    {"type": "string", "enum": [str(number) for number in range(1001)]},
])  # fmt: skip
def test_schemas_that_strict_mode_does_not_support(schema: Json) -> None:
    """The schema is refused with its path, so that the tool can be sent without strict mode."""
    with pytest.raises(NotStrict, match=r"^\$"):
        to_strict({"type": "object", "properties": {"p": schema}, "$defs": {"d": DEFINITION}})


@pytest.mark.parametrize(("schema", "expected"), [
    ({"type": "string", "format": "uri"}, {"type": "string", "description": "format: uri"}),
    ({"type": "string", "pattern": "^(?!x)", "description": "D"},
        {"type": "string", "description": "D (matching ^(?!x))"}),
    ({"type": "array", "items": {"type": "string"}, "uniqueItems": True, "contains": {"const": "a"}},
        {"type": "array", "items": {"type": "string"}, "description": 'unique items; contains: {"const":"a"}'}),
    ({**DEFINITION, "minProperties": 1, "dependentRequired": {"n": []}},
        {**CLOSED, "description": 'at least 1 properties; dependentRequired: {"n":[]}'}),
    ({"type": "integer", "not": {"const": 3}}, {"type": "integer",
        "description": 'nothing that matches {"const":3}'}),
    ({"type": "string", "format": "uuid", "pattern": "^(?:x)"}, {"type": "string", "format": "uuid",
        "pattern": "^(?:x)"}),
])  # fmt: skip
def test_unsupported_constraints_become_text(schema: JsonObject, expected: JsonObject) -> None:
    """The shape is enforced and the constraint becomes text. Supported constraints stay, also inside
    definitions.
    """
    assert to_strict(an_object({"p": schema}, "p")).schema["properties"] == {"p": expected}
    inside = to_strict(an_object({"p": {"$ref": "#/definitions/d"}}, "p", definitions={"d": schema})).schema
    assert inside["$defs"] == {"d": expected}


def test_too_deep() -> None:
    """The provider refuses more than ten levels."""
    schema: JsonObject = {"type": "string"}
    for _ in range(11):
        schema = an_object({"p": schema}, "p")
    with pytest.raises(NotStrict, match="levels"):
        to_strict(schema)


def test_alternatives_are_distinguished() -> None:
    """A null is interpreted by the alternative that the value matches."""
    circle = an_object({"kind": {"const": "circle"}, "label": {"type": "string"}}, "kind")
    square = an_object({"kind": {"const": "square"}, "label": {"type": ["string", "null"]}}, "kind")
    schema = an_object({"shapes": {"type": "array", "items": {"anyOf": [circle, square]}}}, "shapes")
    given_: JsonObject = {"shapes": [{"kind": "circle", "label": None}, {"kind": "square", "label": None}]}
    assert without_added_nulls(given_, schema) == {
        "shapes": [{"kind": "circle"}, {"kind": "square", "label": None}]
    }


def test_arguments_that_fit_no_schema_are_not_changed() -> None:
    """The host handles arguments of a model that ignores the schema."""
    schema = an_object({"a": {"type": "array", "items": {"type": "string"}}, "b": {"$ref": "#/$defs/none"}})
    for value in ({"a": {"x": None}}, {"x": None, "a": [None]}, {"b": {"c": None}}):
        assert without_added_nulls(value, schema) == value


@st.composite
def schemas(draw: st.DrawFn, depth: int = 3) -> JsonObject:
    """A schema that strict mode supports."""
    simple: list[JsonObject] = [
        {"type": "string"},
        {"type": "integer"},
        {"type": ["boolean", "null"]},
        {"enum": ["a", "b"]},
        {"const": "c"},
        {"$ref": "#/$defs/d"},
        {"anyOf": [{"type": "string"}, {"type": "null"}]},
    ]
    if depth == 0:
        return draw(st.sampled_from(simple))
    match draw(st.integers(0, 3)):
        case 0:
            return draw(st.sampled_from(simple))
        case 1:
            return {"type": "array", "items": draw(schemas(depth - 1))}
        case 2:
            return {"oneOf": [{"type": "integer"}, draw(objects(depth - 1))]}
        case _:
            return draw(objects(depth - 1))


@st.composite
def objects(draw: st.DrawFn, depth: int = 3) -> JsonObject:
    properties = draw(st.dictionaries(st.sampled_from("pqr"), schemas(depth), max_size=3))
    return an_object(
        properties, *draw(st.sets(st.sampled_from(sorted(properties) or ["none"])) if properties else st.just(()))
    )


def value_of(draw: st.DrawFn, schema: JsonObject) -> tuple[Json, Json]:
    """A value for the original schema, and the same value in the strict form."""
    if "$ref" in schema:
        return value_of(draw, DEFINITION)
    if "oneOf" in schema or "anyOf" in schema:
        alternatives = schema.get("oneOf", schema.get("anyOf"))
        return value_of(draw, draw(st.sampled_from(alternatives)))
    if "enum" in schema or "const" in schema:
        simple = draw(st.sampled_from(schema["enum"])) if "enum" in schema else schema["const"]
        return simple, simple
    match schema["type"]:
        case "object":
            plain: JsonObject = {}
            strict: JsonObject = {}
            for name, inner in schema["properties"].items():
                if name in schema["required"] or draw(st.booleans()):
                    plain[name], strict[name] = value_of(draw, inner)
                elif not _nullable(inner):
                    strict[name] = None
                else:
                    plain[name] = strict[name] = None
            return plain, strict
        case "array":
            pairs = [value_of(draw, schema["items"]) for _ in range(draw(st.integers(0, 2)))]
            return [plain for plain, _ in pairs], [strict for _, strict in pairs]
        case "string":
            text = draw(st.sampled_from(["", "x"]))
            return text, text
        case "integer":
            return 3, 3
        case "null":
            return None, None
        case _:
            return (None, None) if draw(st.booleans()) else (True, True)


def _nullable(schema: Json) -> bool:
    assert isinstance(schema, dict)
    return schema.get("type") == ["boolean", "null"] or "anyOf" in schema


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_values_survive_the_strict_form(data: st.DataObject) -> None:
    """A value in the strict form is read as the value for the original schema."""
    schema = {**data.draw(objects()), "$defs": {"d": DEFINITION}}
    strict = to_strict(schema)
    plain, said = data.draw(st.composite(lambda draw: value_of(draw, schema))())
    assert isinstance(said, dict)
    assert without_added_nulls(said, schema) == plain
    assert strict.adds_nulls or said == plain
    assert without_added_nulls(without_added_nulls(said, schema), schema) == plain
    _check_strict(strict.schema)


def _check_strict(schema: Json) -> None:
    """Assert that every object is closed and requires all its properties."""
    match schema:
        case {"properties": dict() as properties}:
            assert schema["additionalProperties"] is False
            assert schema["required"] == list(properties)
    inner = schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ()
    for value in inner:
        _check_strict(value)

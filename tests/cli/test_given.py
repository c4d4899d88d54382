"""What a person types for a question: schemas, options, attachments, blocks of code, the line of usage."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.bus import (
    AudioBlock,
    ConfigurationError,
    Cost,
    CostSource,
    DocumentBlock,
    ImageBlock,
    TextBlock,
    TokenUsage,
)
from callboard.bus.values.json import JsonObject
from callboard.engine import TurnOptions
from callboard.engine.cli.answering import name_of
from callboard.engine.cli.given import (
    KINDS,
    as_said,
    attachment,
    content_of,
    joined,
    of_address,
    of_bytes,
    options_of,
    schema_of,
)
from callboard.engine.cli.reply_output import Pace, code_blocks, extracted, per_second, usage_line
from callboard.engine.objects.schema import ObjectSchema

TEXT: JsonObject = {"type": "string"}
AGE: JsonObject = {"type": "integer"}


def objects(required: list[str], **properties: JsonObject) -> JsonObject:
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


@pytest.mark.parametrize(
    ("text", "schema"),
    [
        ("name", objects(["name"], name=TEXT)),
        ("name, age int", objects(["name", "age"], name=TEXT, age=AGE)),
        (" name str ,age  INT, ", objects(["name", "age"], name=TEXT, age=AGE)),
        ("[name, age int]", {"type": "array", "items": objects(["name", "age"], name=TEXT, age=AGE)}),
        ("nick?, tags str[]", objects(["tags"], nick=TEXT, tags={"type": "array", "items": TEXT})),
        ("age int: in years", objects(["age"], age={**AGE, "description": "in years"})),
        (
            "bio: what, and why\nage int",
            objects(["bio", "age"], bio={**TEXT, "description": "what, and why"}, age=AGE),
        ),
        ("born date", objects(["born"], born={"type": "string", "format": "date"})),
        ('{"type": "integer"}', AGE),
    ],
)
def test_a_short_form_is_a_schema(text: str, schema: JsonObject) -> None:
    """Fields between commas or on lines of their own; brackets make a list; JSON is taken as it is."""
    assert schema_of(text) == schema
    assert ObjectSchema(schema_of(text)).sent  # a provider is given it


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no field"),
        ("[]", "no field"),
        ("age inch", "'inch' is no type"),
        ("a b c", "'a b c' is no field"),
        ("{", "is no JSON"),
        ("/nowhere/x.json", "No such file"),
    ],
)
def test_what_is_no_schema_says_why(text: str, said: str) -> None:
    """In one sentence."""
    with pytest.raises(ConfigurationError, match=said):
        schema_of(text)


def test_a_schema_may_stand_in_a_file(tmp_path: Path) -> None:
    """By its name, which ends with .json."""
    (tmp_path / "s.json").write_text('{"type": "integer"}')
    assert schema_of(str(tmp_path / "s.json")) == AGE
    (tmp_path / "l.json").write_text("[1]")
    with pytest.raises(ConfigurationError, match="no JSON Schema"):
        schema_of(str(tmp_path / "l.json"))


@pytest.mark.parametrize(
    ("name", "value", "read"),
    [
        ("temperature", "0.2", 0.2),
        ("seed", "7", 7),
        ("parallel_tool_calls", "false", False),
        ("stop_sequences", "END", ["END"]),
        ("stop_sequences", '["a", "b"]', ["a", "b"]),
        ("user", "7", "7"),
        ("temperature", 1, 1.0),
    ],
)
def test_an_option_is_read_as_what_it_is(name: str, value: str, read: object) -> None:
    """Numbers, words, lists."""
    assert options_of([(name, value)]) == {name: read}


def test_an_option_with_a_dot_is_a_providers() -> None:
    """Its value is JSON, or else text; `as_said` gives the same back."""
    options = options_of([("anthropic.top_k", "40"), ("anthropic.x", "words"), ("seed", "1"), ("seed", "2")])
    assert options == {"provider_options": {"anthropic": {"top_k": 40, "x": "words"}}, "seed": 2}
    assert options_of(as_said(options).items()) == options


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("temprature", "1", "did you mean temperature"),
        ("seed", "x", "takes a whole number"),
        ("", "", "no option"),
    ],
)
def test_a_wrong_option_says_what_is_right(name: str, value: str, said: str) -> None:
    """Its name, or its value."""
    with pytest.raises(ConfigurationError, match=said):
        options_of([(name, value)])


def test_every_option_is_one_of_a_turn() -> None:
    """None is renamed without notice here."""
    assert KINDS.keys() <= TurnOptions.__annotations__.keys()


PNG = b"\x89PNG\r\n\x1a\n...."
WAV = b"RIFF\0\0\0\0WAVE"


@pytest.mark.parametrize(
    ("data", "name", "block"),
    [
        (PNG, "x.txt", ImageBlock(data=PNG)),
        (WAV, "-", AudioBlock(data=WAV)),
        (b"%PDF-1.7", "a.pdf", DocumentBlock(data=b"%PDF-1.7", name="a.pdf")),
        (b"a,b\n", "a.csv", TextBlock('<attachment name="a.csv">\na,b\n</attachment>')),
        (b"\xef\xbb\xbfhi", "n", TextBlock('<attachment name="n">\nhi\n</attachment>')),
        (b"\0\1", "v.mp3", AudioBlock(data=b"\0\1", media_type="audio/mpeg")),
    ],
)
def test_an_attachment_is_what_its_content_shows_and_else_its_name(data: bytes, name: str, block: object) -> None:
    """A PNG is an image whatever it is called."""
    assert of_bytes(data, name) == block


def test_a_type_that_is_said_stands_over_both() -> None:
    """For formats that nothing else shows."""
    assert of_bytes(b"\0x", "photo", "image/heic") == ImageBlock(data=b"\0x", media_type="image/heic")
    assert of_address("https://h/p", "image/png") == ImageBlock(url="https://h/p", media_type="image/png")


@pytest.mark.parametrize(
    ("url", "kind"),
    [("https://h/a.JPG?x=1", ImageBlock), ("http://h/a.mp3", AudioBlock), ("https://h/a.pdf", DocumentBlock)],
)
def test_an_address_is_what_its_name_shows(url: str, kind: type) -> None:
    """The provider fetches it."""
    assert isinstance(attachment(url, None, lambda: b""), kind)


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("/nowhere/x", "No such file"),
        ("https://h/x", "say it with --at https://h/x TYPE"),
        ("-", "stdin: is empty"),
    ],
)
def test_an_attachment_that_cannot_be_had_says_why(source: str, said: str) -> None:
    """In one sentence, with what to do."""
    with pytest.raises(ConfigurationError, match=said):
        attachment(source, None, lambda: b"")
    with pytest.raises(ConfigurationError, match="say it with --at x TYPE"):
        of_bytes(b"\0", "x")


def test_the_pipe_comes_before_what_is_said() -> None:
    """Either may be missing; attachments stand before the text, or alone."""
    assert joined("diff", "What is new?") == "diff\n\nWhat is new?"
    assert (joined("diff", ""), joined(" \n", "hi")) == ("diff", "hi")
    image = ImageBlock(data=PNG)
    assert content_of("hi", [image]) == [image, TextBlock("hi")]
    assert content_of("", [image]) == [image]
    with pytest.raises(ConfigurationError, match="nothing to ask"):
        content_of(" ", [])


@pytest.mark.parametrize(
    ("text", "blocks"),
    [
        ("no code", []),
        ("a\n```python\nx = 1\n```\nb", ["x = 1\n"]),
        ("```\na\n```\n\n~~~ sh\nb\n~~~", ["a\n", "b\n"]),
        ("````md\n```\ninner\n```\n````", ["```\ninner\n```\n"]),
        ("```\ncut off", ["cut off"]),
        ("```\n```", [""]),
        ("```js not closed by ```js\n```", [""]),
        ("`` no ``\n", []),
    ],
)
def test_blocks_of_code_are_found_as_commonmark_has_them(text: str, blocks: list[str]) -> None:
    """A longer fence may hold shorter ones; a block that was cut off is one, too."""
    assert code_blocks(text) == blocks
    assert extracted(text, "first") == (blocks[0] if blocks else None)
    assert extracted(text, "last") == (blocks[-1] if blocks else None)


@given(st.lists(st.text(alphabet="ab \n", max_size=20), max_size=4))
def test_fenced_code_comes_back(codes: list[str]) -> None:
    """Whatever stands in it that is no fence."""
    whole = [f"{code}\n" for code in codes]
    assert code_blocks("\n".join(f"words\n```x\n{code}```" for code in whole)) == whole


def test_the_pace_of_a_reply_is_that_of_its_tokens_once_it_had_begun() -> None:
    """Nothing is said of one that came whole, in no time, or with tools in the middle."""
    assert per_second(101, Pace(0, 1, 3), 1) == 50
    assert [
        per_second(9, Pace(0, None, 3), 1),
        per_second(9, Pace(0, 3, 3), 1),
        per_second(9, Pace(0, 1, 3), 2),
    ] == [
        None,
        None,
        None,
    ]
    line = usage_line("p:m", TokenUsage(10, 101, cached_input_tokens=2000), None, Pace(0, 1, 3))
    assert (
        line == "p:m: 2,010 in (2,000 cached), 101 out, 50 tokens a second, the first after 1.0 s, 3.0 s in all, -"
    )
    whole = usage_line("p:m", TokenUsage(1, 1), Cost(1_000_000, CostSource.COMPUTED), Pace(0, None, 3), replies=2)
    assert whole == "p:m in 2 calls: 1 in, 1 out, 3.0 s in all, $0.001000000"


def test_a_conversation_is_called_by_its_first_words() -> None:
    """On one line, and not too many."""
    assert name_of("  What is\nnew? ") == "What is new?"
    assert name_of(" ") is None
    assert name_of("word " * 50, 9) == "word word…"

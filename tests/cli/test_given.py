"""The inputs of a question: schemas, options, attachments, code blocks, templates, and the line of usage."""

from __future__ import annotations

import json
import stat
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
from callboard.bus.values.base import JsonObject
from callboard.engine import TurnOptions
from callboard.engine.cli.answers import Pace, code_blocks, extracted, name_of, per_second, usage_line
from callboard.engine.cli.inputs import (
    KINDS,
    as_json_options,
    attachment,
    of_address,
    of_bytes,
    options_of,
    schema_of,
)
from callboard.engine.cli.templates import Template, as_yaml, load, names, path_of, read, save
from callboard.engine.generation.objects import ObjectSchema

from .running import call

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
    """Commas or line breaks separate the fields. Brackets make a list. JSON is used unchanged."""
    assert schema_of(text) == schema
    assert ObjectSchema(schema_of(text)).sent  # ObjectSchema accepts the schema, so a provider can receive it.


def test_a_wrong_schema_is_refused_with_a_reason(tmp_path: Path) -> None:
    """The error is one sentence. A file ending in .json can contain the schema."""
    (tmp_path / "s.json").write_text('{"type": "integer"}')
    assert schema_of(str(tmp_path / "s.json")) == AGE
    (tmp_path / "l.json").write_text("[1]")
    wrong = {
        "": "no field",
        "[]": "no field",
        "age inch": "'inch' is not a field type",
        "a b c": "'a b c' is not a field",
    }
    wrong |= {"{": "is not JSON", "/nowhere/x.json": "No such file", str(tmp_path / "l.json"): "not a JSON Schema"}
    for text, message in wrong.items():
        with pytest.raises(ConfigurationError, match=message):
            schema_of(text)


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
def test_an_option_is_read_as_its_type(name: str, value: str, read: object) -> None:
    """The option's name decides whether the value is a number, a text, a boolean or a list."""
    assert options_of([(name, value)]) == {name: read}


def test_an_option_with_a_dot_is_an_option_of_the_provider() -> None:
    """The value is JSON, or else text. `as_json_options` is the inverse."""
    options = options_of([("anthropic.top_k", "40"), ("anthropic.x", "words"), ("seed", "1"), ("seed", "2")])
    assert options == {"provider_options": {"anthropic": {"top_k": 40, "x": "words"}}, "seed": 2}
    assert options_of(as_json_options(options).items()) == options


def test_the_error_of_a_wrong_option_has_a_correction() -> None:
    assert KINDS.keys() <= TurnOptions.__annotations__.keys()
    wrong = {("temprature", "1"): "did you mean temperature", ("seed", "x"): "must be a whole number"}
    for option, message in {**wrong, ("", ""): "unknown option"}.items():
        with pytest.raises(ConfigurationError, match=message):
            options_of([option])


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
def test_an_attachments_type_comes_from_its_content_or_else_its_name(
    data: bytes, name: str, block: object
) -> None:
    """The content takes precedence over the name: a PNG is an image with any name."""
    assert of_bytes(data, name) == block


def test_the_type_of_an_address_comes_from_its_name() -> None:
    """The provider fetches the address. An explicit type replaces the type of the name and of the content."""
    kinds = {"https://h/a.JPG?x=1": ImageBlock, "http://h/a.mp3": AudioBlock, "https://h/a.pdf": DocumentBlock}
    for url, kind in kinds.items():
        assert isinstance(attachment(url, None, lambda: b""), kind)
    assert of_bytes(b"\0x", "photo", "image/heic") == ImageBlock(data=b"\0x", media_type="image/heic")
    assert of_address("https://h/p", "image/png") == ImageBlock(url="https://h/p", media_type="image/png")


def test_an_attachment_that_cannot_be_read_is_refused_with_a_reason() -> None:
    wrong = {
        "/nowhere/x": "No such file",
        "https://h/x": "Set it with --at https://h/x TYPE",
        "-": "stdin: is empty",
    }
    for source, message in wrong.items():
        with pytest.raises(ConfigurationError, match=message):
            attachment(source, None, lambda: b"")
    with pytest.raises(ConfigurationError, match="Set it with --at x TYPE"):
        of_bytes(b"\0", "x")


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
def test_blocks_of_code_follow_commonmark(text: str, blocks: list[str]) -> None:
    """A longer fence can contain shorter fences. A block without a closing fence counts."""
    assert code_blocks(text) == blocks
    assert extracted(text, "first") == (blocks[0] if blocks else None)
    assert extracted(text, "last") == (blocks[-1] if blocks else None)


@given(st.lists(st.text(alphabet="ab \n", max_size=20), max_size=4))
def test_fenced_code_is_read_unchanged(codes: list[str]) -> None:
    whole = [f"{code}\n" for code in codes]
    assert code_blocks("\n".join(f"words\n```x\n{code}```" for code in whole)) == whole


def test_the_pace_of_a_reply_counts_tokens_after_the_first() -> None:
    """The pace is missing for a reply without a first token or with several calls."""
    assert per_second(101, Pace(0, 1, 3), 1) == 50
    for pace, replies in ((Pace(0, None, 3), 1), (Pace(0, 3, 3), 1), (Pace(0, 1, 3), 2)):
        assert per_second(9, pace, replies) is None
    line = usage_line("p:m", TokenUsage(10, 101, cached_input_tokens=2000), None, Pace(0, 1, 3))
    told = "2,010 in (2,000 cached), 101 out, 50 tokens a second, the first after 1.0 s, 3.0 s in total, -"
    assert line == f"p:m: {told}"
    whole = usage_line("p:m", TokenUsage(1, 1), Cost(1_000_000, CostSource.COMPUTED), Pace(0, None, 3), replies=2)
    assert whole == "p:m in 2 calls: 1 in, 1 out, 3.0 s in total, $0.001000000"


def test_a_conversations_name_is_its_first_words() -> None:
    """The name is one short line."""
    assert name_of("  What is\nnew? ") == "What is new?"
    assert name_of(" ") is None
    assert name_of("word " * 50, 9) == "word word…"


# -- Templates: the content of their files, their parameters, and the commands that show and edit them.

TRANSLATE = """
system: You are a translator.
prompt: "Into $language, for ${reader}: $input"
model: first
defaults: {reader: a child}
options: {temperature: 0}
schema: {type: object}
tools: [clock]
extract: last
"""


@pytest.fixture
def folder(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The templates folder of this process."""
    monkeypatch.setenv("CALLBOARD_HOME", str(home))
    return home / "templates"


def test_a_parameter_is_filled_from_the_caller_or_from_its_default() -> None:
    """`$input` is the question. A missing parameter and an unknown parameter are refused by name."""
    template = read("translate", TRANSLATE)
    assert template.parameters == ("language", "reader")
    assert template.filled("dog", {"language": "French"}).prompt == "Into French, for a child: dog"
    assert template.filled("dog", {"language": "French", "reader": "me"}).prompt == "Into French, for me: dog"
    assert (template.model, template.options, template.schema) == ("first", {"temperature": 0}, {"type": "object"})
    assert (template.tools, template.extract) == (("clock",), "last")
    with pytest.raises(ConfigurationError, match="needs a value for language: -p language VALUE"):
        template.filled("", {})
    with pytest.raises(ConfigurationError, match="has no parameter 'tongue': expected one of language, reader"):
        template.filled("", {"language": "x", "tongue": "y"})
    assert read("t", "prompt: Tell a joke.").filled("", {}).prompt == "Tell a joke.", (
        "the prompt has no blank lines at its end"
    )


@pytest.mark.parametrize(
    ("text", "prompt", "system"),
    [
        ("prompt: Sum up.", "Sum up.\n\nthe input", None),
        ("Sum up.", "Sum up.\n\nthe input", None),
        ("prompt: 'Sum up: $input!'", "Sum up: the input!", None),
        ("system: Be brief.", "the input", "Be brief."),
        ("system: Of $input speak briefly.\nprompt: Speak.", "Speak.", "Of the input speak briefly."),
        ("", "the input", None),
        ("prompt: costs $$5", "costs $5\n\nthe input", None),
    ],
)
def test_the_input_replaces_its_name_or_comes_below_the_prompt(text: str, prompt: str, system: str | None) -> None:
    """The input occurs once, or twice if the template names it twice."""
    assert read("t", text).filled("the input", {}) == (prompt, system)


@given(st.text(), st.text())
def test_a_value_is_inserted_unchanged(value: str, said: str) -> None:
    """A value that looks like a parameter is not expanded."""
    filled = Template(name="t", prompt="$a|$input").filled(said, {"a": value})
    assert filled.prompt == f"{value}|{said}"


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("prompt: costs $5", "prompt: invalid parameter after \\$"),
        ("defaults: {a: 1}", "defaults.a: system and prompt have no \\$a"),
        ("prompts: hello", "unknown field `prompts`"),
        ("options: [1]", "Expected `object`, got `array` - at `options`"),
        ("extract: all", "Invalid enum value 'all' - at `extract`"),
        ("prompt: [", "is not valid YAML"),
        ("[1]", "Expected `object`, got `array`"),
    ],
)
def test_the_error_of_a_wrong_file_has_its_place(text: str, fault: str, folder: Path) -> None:
    """The error names the file, the key and the fault."""
    folder.mkdir()
    (folder / "t.yaml").write_text(text)
    with pytest.raises(ConfigurationError, match=fault) as raised:
        load("t")
    assert str(folder / "t.yaml") in str(raised.value)


def test_a_name_never_leads_out_of_the_folder(folder: Path) -> None:
    """A path is not a name."""
    for name in ("../models", "a/b", "", ".hidden", "/etc/passwd"):
        with pytest.raises(ConfigurationError, match="is not a template name"):
            path_of(name)
    save(Template(name="translate", prompt="x"))
    with pytest.raises(ConfigurationError, match="did you mean 'translate'"):
        load("transalte")
    with pytest.raises(ConfigurationError, match="templates edit zzz"):
        load("zzz")


def test_a_saved_template_is_read_unchanged(folder: Path) -> None:
    """Only the owner can read the file, and only `replace=True` replaces it."""
    more = {"defaults": {"a": 1}, "schema": "name, age int", "tools": ("x",), "extract": "first"}
    template = Template(name="t", prompt="two\nlines $a", **more)
    path = save(template)
    assert load("t") == template
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert "prompt: |" in path.read_text()
    with pytest.raises(ConfigurationError, match="already"):
        save(template)
    save(Template(name="t", prompt="other"), replace=True)
    assert load("t").prompt == "other"
    assert names() == ["t"]


@given(st.text(st.characters(codec="utf-8"), min_size=1))
def test_any_text_survives_its_file(text: str) -> None:
    """Quotes, colons, control characters, and spaces at the ends are kept."""
    template = Template(name="t", description=text)
    assert read("t", as_yaml(template)) == template


def test_the_list_shows_a_broken_template_with_its_fault(home: Path) -> None:
    """The list also shows the other templates."""
    (home / "templates").mkdir()
    (home / "templates" / "good.yaml").write_text(TRANSLATE)
    (home / "templates" / "bad.yaml").write_text("prompt: costs $5")
    done = call("templates", "list", "--json", home=home, exits=0)
    bad, good = map(json.loads, done.stdout.splitlines())
    assert (good["name"], good["parameters"]) == ("good", ["language", "reader"])
    assert "invalid parameter after" in bad["error"]
    assert "can't be read" in call("templates", "list", home=home, exits=0).stdout


def test_an_edited_template_is_checked(home: Path) -> None:
    """A new template starts as an example. A written text stays, even if it is wrong or the editor fails."""
    new, edit = home / "templates" / "new.yaml", ("templates", "edit", "new")
    assert "no-such-editor" in call(*edit, home=home, exits=2, more={"VISUAL": "no-such-editor"}).stderr
    call(*edit, home=home, exits=1, more={"VISUAL": "false"})
    assert not new.exists()
    assert "ask -t new" in call(*edit, home=home, exits=0, more={"VISUAL": "true"}).stdout
    assert "$input" in call("templates", "show", "new", home=home, exits=0).stdout
    for text, ends, code in (("prompt: hi", 3, 1), ("prompt: $5", 0, 2)):
        (home / "text").write_text(text)
        spoil = {"VISUAL": f"sh -c 'cat {home}/text > \"$0\"; exit {ends}'"}
        done = call(*edit, home=home, exits=code, more=spoil)
        assert new.read_text() == text
    assert "invalid parameter after" in done.stderr
    assert call("templates", "path", home=home, exits=0).stdout.strip() == str(home / "templates")
    assert call("templates", "path", "new", home=home, exits=0).stdout.strip() == str(new)

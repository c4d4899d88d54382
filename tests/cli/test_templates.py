"""Templates: what their files may say, how they are filled, and the commands that show and edit them."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.bus import ConfigurationError
from callboard.engine.cli.templates import Template, as_yaml, load, names, path_of, read, save

from .running import call

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
    """The folder of templates of this process."""
    monkeypatch.setenv("CALLBOARD_HOME", str(home))
    return home / "templates"


def test_a_parameter_is_filled_from_the_caller_or_from_its_default() -> None:
    """And ``$input`` from what is asked."""
    template = read("translate", TRANSLATE)
    assert template.parameters == ("language", "reader")
    assert template.filled("dog", {"language": "French"}).prompt == "Into French, for a child: dog"
    assert template.filled("dog", {"language": "French", "reader": "me"}).prompt == "Into French, for me: dog"


def test_all_that_a_file_says_is_there() -> None:
    """Model, options, schema, tools and what to extract."""
    template = read("translate", TRANSLATE)
    assert (template.model, template.options, template.schema) == ("first", {"temperature": 0}, {"type": "object"})
    assert (template.tools, template.extract) == (("clock",), "last")


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
def test_the_input_goes_where_it_is_named_or_else_below_the_prompt(
    text: str, prompt: str, system: str | None
) -> None:
    """It is never lost, and never there twice unless the template says so."""
    assert read("t", text).filled("the input", {}) == (prompt, system)


def test_a_prompt_without_an_input_is_asked_as_it_is() -> None:
    """No blank lines are added for an input that isn't there."""
    assert read("t", "prompt: Tell a joke.").filled("", {}).prompt == "Tell a joke."


@given(st.text(), st.text())
def test_a_value_is_put_in_as_it_is(value: str, said: str) -> None:
    """Also one that looks like a parameter itself."""
    filled = Template(name="t", prompt="$a|$input").filled(said, {"a": value})
    assert filled.prompt == f"{value}|{said}"


def test_a_missing_and_a_strange_parameter_are_refused() -> None:
    """By their names."""
    template = read("translate", TRANSLATE)
    with pytest.raises(ConfigurationError, match="needs a value for language: -p language VALUE"):
        template.filled("", {})
    with pytest.raises(ConfigurationError, match="has no parameter 'tongue': they are language, reader"):
        template.filled("", {"language": "x", "tongue": "y"})


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("prompt: costs $5", "prompt: a \\$ begins no parameter"),
        ("defaults: {a: 1}", "defaults.a: there is no \\$a"),
        ("prompts: hello", "unknown field `prompts`"),
        ("options: [1]", "Expected `object`, got `array` - at `options`"),
        ("extract: all", "Invalid enum value 'all' - at `extract`"),
        ("prompt: [", "is no YAML"),
        ("[1]", "Expected `object`, got `array`"),
    ],
)
def test_a_wrong_file_is_told_by_its_place(text: str, fault: str, folder: Path) -> None:
    """The error names the file, the key and the fault."""
    folder.mkdir()
    (folder / "t.yaml").write_text(text)
    with pytest.raises(ConfigurationError, match=fault) as raised:
        load("t")
    assert str(folder / "t.yaml") in str(raised.value)


@pytest.mark.parametrize("name", ["../models", "a/b", "", ".hidden", "/etc/passwd"])
def test_a_name_leads_nowhere_but_into_the_folder(name: str, folder: Path) -> None:
    """A path is no name."""
    with pytest.raises(ConfigurationError, match="is no name of a template"):
        path_of(name)


def test_an_unknown_template_is_answered_with_the_nearest(folder: Path) -> None:
    """Or with how to make one."""
    save(Template(name="translate", prompt="x"))
    with pytest.raises(ConfigurationError, match="did you mean 'translate'"):
        load("transalte")
    with pytest.raises(ConfigurationError, match="templates edit zzz"):
        load("zzz")


def test_a_saved_template_is_read_again_as_it_was(folder: Path) -> None:
    """Its file is its owner's alone, and isn't replaced unless that is said."""
    template = Template(
        name="t", prompt="two\nlines $a", defaults={"a": 1}, schema="name, age int", tools=("x",), extract="first"
    )
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
    """Quotes, colons, blanks at the ends and control characters are kept."""
    template = Template(name="t", description=text)
    assert read("t", as_yaml(template)) == template


def test_the_list_shows_a_broken_template_with_its_fault(home: Path) -> None:
    """The others are listed all the same."""
    (home / "templates").mkdir()
    (home / "templates" / "good.yaml").write_text(TRANSLATE)
    (home / "templates" / "bad.yaml").write_text("prompt: costs $5")
    done = call("templates", "list", "--json", home=home, exits=0)
    bad, good = map(json.loads, done.stdout.splitlines())
    assert (good["name"], good["parameters"]) == ("good", ["language", "reader"])
    assert "begins no parameter" in bad["error"]
    assert "can't be read" in call("templates", "list", home=home, exits=0).stdout


def test_an_edited_template_is_checked(home: Path) -> None:
    """A new one begins with an example; a wrong one stays for the next try, and the exit code is 2."""
    made = call("templates", "edit", "new", home=home, exits=0, more={"VISUAL": "true"})
    assert "ask -t new" in made.stdout
    assert "$input" in call("templates", "show", "new", home=home, exits=0).stdout
    spoil = {"VISUAL": """sh -c 'printf "prompt: \\$5" > "$0"'"""}
    done = call("templates", "edit", "new", home=home, exits=2, more=spoil)
    assert "begins no parameter" in done.stderr
    assert (home / "templates" / "new.yaml").read_text() == "prompt: $5"


def test_an_editor_that_is_not_there_leaves_nothing(home: Path) -> None:
    """The error names the editor."""
    done = call("templates", "edit", "new", home=home, exits=2, more={"VISUAL": "no-such-editor"})
    assert "no-such-editor" in done.stderr
    assert not (home / "templates" / "new.yaml").exists()


def test_an_editor_that_fails_leaves_what_was_written_and_no_example(home: Path) -> None:
    """The exit code is 1."""
    call("templates", "edit", "new", home=home, exits=1, more={"VISUAL": "false"})
    assert not (home / "templates" / "new.yaml").exists()
    spoil = {"VISUAL": """sh -c 'printf "prompt: hi" > "$0"; exit 3'"""}
    call("templates", "edit", "new", home=home, exits=1, more=spoil)
    assert (home / "templates" / "new.yaml").read_text() == "prompt: hi"


def test_the_path_is_where_templates_are(home: Path) -> None:
    """Of the folder, or of one of them."""
    assert call("templates", "path", home=home, exits=0).stdout.strip() == str(home / "templates")
    assert call("templates", "path", "a", home=home, exits=0).stdout.strip() == str(home / "templates/a.yaml")

"""`callboard embed`: texts in, vectors out, and a trace of what it cost."""

from __future__ import annotations

import json
from array import array
from base64 import b64decode
from pathlib import Path

import pytest

from .running import call

MODELS = """
adapters:
  toy: {type: scripted, options: {replies: ["-"]}}
  poor: {type: "tests.cli.adapters:PoorEmbedder"}
models:
  "toy:words": {adapter: toy, kind: embedding, aliases: [words]}
  "poor:words": {adapter: poor, kind: embedding}
"""


@pytest.fixture
def embedding(home: Path) -> Path:
    (home / "models.yaml").write_text(MODELS)
    return home


def test_the_texts_of_the_command_line_come_out_as_vectors(embedding: Path) -> None:
    """What it used and cost is on stderr, and in the trace."""
    done = call("embed", "--model", "words", "--dimensions", "8", "red cat", "red dog", home=embedding, exits=0)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(line["index"], len(line["embedding"])) for line in lines] == [(0, 8), (1, 8)]
    assert done.stderr.splitlines()[-1] == "2 texts, 8 dimensions, toy:words: 4 tokens, unpriced"
    (row,) = [json.loads(line) for line in call("traces", "--json", home=embedding).stdout.splitlines()]
    assert (row["operation"], row["model"], row["status"]) == ("embeddings", "toy:words", "completed")


def test_without_a_text_it_is_the_lines_of_stdin(embedding: Path) -> None:
    done = call("embed", "--model", "words", home=embedding, said="one\ntwo\nthree")
    assert [json.loads(line)["index"] for line in done.stdout.splitlines()] == [0, 1, 2]


def test_records_come_out_with_their_vectors(embedding: Path) -> None:
    """As base64, which is exactly the float32 numbers."""
    said = '{"id": 7, "body": "red cat"}\n\n{"id": 8, "body": "blue sky"}\n'
    options = ("embed", "--model", "words", "--jsonl", "body", "--dimensions", "4")
    plain = [json.loads(line) for line in call(*options, home=embedding, said=said).stdout.splitlines()]
    packed = [
        json.loads(line) for line in call(*options, "--base64", home=embedding, said=said).stdout.splitlines()
    ]
    assert [(line["id"], line["body"]) for line in packed] == [(7, "red cat"), (8, "blue sky")]
    for one, other in zip(plain, packed, strict=True):
        assert array("f", b64decode(other["embedding"])) == array("f", one["embedding"])


@pytest.mark.parametrize("said", ["no json", '{"id": 1}', '"text"', '{"body": 5}'])
def test_a_record_without_the_text_is_named_by_its_line(embedding: Path, said: str) -> None:
    done = call(
        "embed", "--model", "words", "--jsonl", "body", home=embedding, said=f'{{"body": "x"}}\n{said}\n', exits=1
    )
    assert done.stderr.startswith("callboard: line 2 of the input ")
    assert done.stdout == ""


def test_what_could_not_be_embedded_stands_in_its_place(embedding: Path) -> None:
    """The others are there all the same, and the exit code tells."""
    done = call("embed", "--model", "poor:words", "fine", "bad", "good", home=embedding)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [sorted(line) for line in lines] == [["embedding", "index"], ["error", "index"], ["embedding", "index"]]
    assert done.returncode == 1
    assert "1 of 3 texts were not embedded (number 1)" in done.stderr


def test_an_unknown_model_is_a_matter_of_configuration(embedding: Path) -> None:
    done = call("embed", "--model", "word", "x", home=embedding, exits=2)
    assert "did you mean words" in done.stderr

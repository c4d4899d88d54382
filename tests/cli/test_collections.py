"""Collections: texts that are embedded, unchanged texts, permissions, and searches."""

from __future__ import annotations

import json
import math
import stat
from array import array
from base64 import b64decode
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.bus import CallboardError, StoreError
from callboard.engine.cli.embed import Fields, records_of
from callboard.tracestore.collections import CollectionFile, Item, packed, plain_scores, scores_with, unpacked

from .running import call

MODELS = """
adapters:
  toy: {type: scripted, options: {replies: ["-"]}}
  poor: {type: "tests.cli.adapters:PoorEmbedder"}
  plain: {type: "tests.cli.adapters:PlainEmbedder"}
models:
  "toy:words": {adapter: toy, kind: embedding, aliases: [words]}
  "toy:others": {adapter: toy, kind: embedding, aliases: [others]}
  "poor:words": {adapter: poor, kind: embedding}
  "plain:words": {adapter: plain, kind: embedding}
"""
VECTORS = st.lists(st.integers(-100, 100).map(lambda number: number / 8), min_size=3, max_size=3)


@pytest.fixture
def embedding(home: Path) -> Path:
    """A home folder with embedding models."""
    (home / "models.yaml").write_text(MODELS)
    return home


def rows(*words: str, home: Path, said: str = "") -> list[dict[str, object]]:
    out = call(*words, "--json", home=home, said=said, exits=0).stdout
    return [json.loads(line) for line in out.splitlines()]


def test_lines_are_embedded_once_and_found_again(embedding: Path) -> None:
    add = ("collections", "add", "animals", "--keep-text", "--model", "words")
    first = call(*add, home=embedding, said="red cat\nred dog\nblue sky\n", exits=0)
    again = call(*add, home=embedding, said="red cat\nblue sky\ngreen sea\n", exits=0)
    assert "3 texts embedded, 0 unchanged" in first.stderr
    assert "1 text embedded, 2 unchanged" in again.stderr
    found = rows("similar", "animals", "-c", "blue sky", "-n", "2", home=embedding)
    assert found[0]["text"] == "blue sky"
    assert found[0]["score"] == pytest.approx(1, abs=1e-6)
    assert len(found) == 2
    (known,) = rows("collections", "list", home=embedding)
    assert (known["name"], known["model"], known["items"]) == ("animals", "toy:words", 4)
    assert stat.S_IMODE((embedding / "embeddings.db").stat().st_mode) == 0o600
    asked = [row for row in rows("traces", home=embedding) if row["operation"] == "embeddings"]
    assert len(asked) == 3


def test_rows_and_files_come_with_their_ids(embedding: Path, tmp_path: Path) -> None:
    """Sources are CSV, JSON, JSON lines, and files below a folder. Further fields are stored as metadata."""
    (tmp_path / "a.csv").write_text("id,text,colour\n1,red cat,red\n2,blue sky,blue\n")
    (tmp_path / "b.jsonl").write_text('{"key": 3, "title": "green", "body": "sea"}\n\n')
    (tmp_path / "c.json").write_text('[{"id": "4", "text": "grey rock"}]')
    (tmp_path / "docs" / ".hidden").mkdir(parents=True)
    (tmp_path / "docs" / "d.md").write_text("white snow")
    (tmp_path / "docs" / ".hidden" / "e.md").write_text("nobody's")
    add = ("collections", "add", "all", "-m", "words")
    call(*add, "-f", str(tmp_path / "a.csv"), str(tmp_path / "c.json"), home=embedding, exits=0)
    call(*add, "-f", str(tmp_path / "docs"), home=embedding, exits=0)
    fields = ("--id", "key", "--text", "title", "--text", "body")
    call(*add, *fields, "-f", str(tmp_path / "b.jsonl"), home=embedding, exits=0)
    found = rows("similar", "all", "1", home=embedding)
    assert {row["id"] for row in found} == {"2", "3", "4", str(tmp_path / "docs" / "d.md")}
    assert {json.dumps(row["metadata"]) for row in found} == {"null", '{"colour": "blue"}'}
    assert all(row["text"] is None for row in found)


def test_a_changed_text_replaces_the_one_of_its_id(embedding: Path) -> None:
    add = ("collections", "add", "c", "-m", "words", "--as", "jsonl", "--keep-text")
    call(*add, home=embedding, said='{"id": 1, "text": "red cat"}\n', exits=0)
    done = call(*add, home=embedding, said='{"id": 1, "text": "blue sky", "n": 1}\n', exits=0)
    assert "1 text embedded" in done.stderr
    (found,) = rows("similar", "c", home=embedding, said="blue sky")
    assert (found["text"], found["metadata"]) == ("blue sky", {"n": 1})
    done = call(*add, home=embedding, said='{"id": 1, "text": "blue sky", "n": 2}\n', exits=0)
    assert "0 texts embedded, 1 unchanged" in done.stderr
    assert rows("similar", "c", home=embedding, said="blue sky")[0]["metadata"] == {"n": 2}


def test_a_collection_keeps_its_model(embedding: Path) -> None:
    done = call("collections", "add", "c", home=embedding, said="x\n", exits=2)
    assert "choose its embedding model" in done.stderr
    call("collections", "add", "c", "-m", "words", home=embedding, said="x\n", exits=0)
    done = call("collections", "add", "c", "-m", "others", home=embedding, said="y\n", exits=2)
    assert "can't be compared" in done.stderr
    call("collections", "add", "c", home=embedding, said="y\n", exits=0)
    # This is the same model through another adapter.
    call("collections", "add", "c", "-m", "poor:words", home=embedding, said="z\n", exits=0)
    assert rows("collections", "list", home=embedding)[0]["items"] == 3


def test_a_list_and_a_search_make_no_file(embedding: Path) -> None:
    """`add` requests no input type, so a model without input types gives no warning."""
    assert rows("collections", "list", home=embedding) == []
    assert "unknown collection 'c'" in call("similar", "c", "-c", "x", home=embedding, exits=1).stderr
    assert [path.name for path in embedding.iterdir()] == ["models.yaml"]
    report = call("collections", "add", "n", "-m", "plain:words", home=embedding, said="a\n", exits=0).stderr
    assert report.startswith("n: 1 text embedded")
    done = call("embed", "-m", "plain:words", "--input-type", "query", "a", home=embedding, exits=0)
    assert "parameter_dropped: input_type" in done.stderr


def test_vectors_from_before_a_failure_are_kept(embedding: Path) -> None:
    done = call("collections", "add", "c", "-m", "poor:words", home=embedding, said="good\nbad\nfine\n", exits=1)
    assert "1 of 3 texts were not embedded" in done.stderr
    assert rows("collections", "list", home=embedding)[0]["items"] == 2
    done = call("collections", "add", "c", home=embedding, said="good\nfine\n", exits=0)
    assert "0 texts embedded, 2 unchanged" in done.stderr


def test_a_deleted_collection_leaves_no_bytes(embedding: Path) -> None:
    add = ("collections", "add", "c", "-m", "words", "--keep-text", "--as", "csv")
    call(*add, home=embedding, said="id,text\n1,a very secret text\n2,another\n", exits=0)
    call("collections", "delete", "c", "1", home=embedding, exits=0)
    assert b"secret" not in (embedding / "embeddings.db").read_bytes()
    assert "has no such items" in call("collections", "delete", "c", "1", home=embedding, exits=1).stderr
    assert "1 item" in call("collections", "delete", "c", home=embedding, exits=0).stdout
    assert b"another" not in (embedding / "embeddings.db").read_bytes()
    assert "unknown collection" in call("collections", "delete", "c", home=embedding, exits=1).stderr
    assert rows("collections", "list", home=embedding) == []


def test_an_incomplete_row_is_named() -> None:
    for kind, text, fault in (
        ("jsonl", '{"text": "x"}', "row 1 has no id"),
        ("jsonl", '{"id": 1}', "row 1 has no text"),
        ("json", "[1]", "row 1 is not an object"),
        ("json", "no json", "is not JSON"),
        ("csv", "a,b\n1,2\n", "row 1 has no id"),
    ):
        with pytest.raises(CallboardError, match=f"here: {fault}"):
            list(records_of(text, kind, Fields(), "here"))  # type: ignore[arg-type]


def test_no_part_of_a_refused_batch_is_kept(tmp_path: Path) -> None:
    with CollectionFile(tmp_path / "e.db") as file:
        file.put("c", [Item("1", b"1", packed([1, 0]))], model="a:m", space="m")
        with pytest.raises(StoreError, match="have 2 dimensions"):
            file.put("c", [Item("2", b"2", packed([1, 0])), Item("3", b"3", packed([1]))], model="a:m", space="m")
        with pytest.raises(StoreError, match="be compared"):
            file.put("c", [Item("2", b"2", packed([1, 0]))], model="a:n", space="n")
        assert file.hashes("c") == {"1": b"1"}


def test_another_database_is_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "trace.db"
    import sqlite3

    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE calls (id)")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(StoreError, match="is not a collections file"), CollectionFile(path):
        pass
    assert path.read_bytes() == before


@given(VECTORS)
def test_a_vector_is_read_unchanged(vector: list[float]) -> None:
    assert list(unpacked(packed(vector))) == vector


@given(VECTORS, st.lists(VECTORS, max_size=4))
def test_the_similarity_is_the_cosine(one: list[float], others: list[list[float]]) -> None:
    """Scores are the same with and without numpy, for any pair of vectors."""
    expected = [cosine(one, other) for other in others]
    stored = [packed(other) for other in others]
    for scores in (plain_scores(packed(one)), scores_with(packed(one))):
        assert scores(stored) == pytest.approx(expected, abs=1e-5)


def cosine(one: Sequence[float], other: Sequence[float]) -> float:
    lengths = math.hypot(*one) * math.hypot(*other)
    return math.fsum(a * b for a, b in zip(one, other, strict=True)) / lengths if lengths else 0.0


# -- `callboard embed`: reads texts, writes vectors, and records the cost.


def test_texts_on_the_command_line_become_vectors(embedding: Path) -> None:
    done = call("embed", "--model", "words", "--dimensions", "8", "red cat", "red dog", home=embedding, exits=0)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(line["index"], len(line["embedding"])) for line in lines] == [(0, 8), (1, 8)]
    assert done.stderr.splitlines()[-1] == "2 texts, 8 dimensions, toy:words: 4 tokens, unpriced"
    (row,) = [json.loads(line) for line in call("traces", "--json", home=embedding).stdout.splitlines()]
    assert (row["operation"], row["model"], row["status"]) == ("embeddings", "toy:words", "completed")


def test_without_a_text_the_lines_of_stdin_are_embedded(embedding: Path) -> None:
    done = call("embed", "--model", "words", home=embedding, said="one\ntwo\nthree")
    assert [json.loads(line)["index"] for line in done.stdout.splitlines()] == [0, 1, 2]
    assert "did you mean words" in call("embed", "--model", "word", "x", home=embedding, exits=2).stderr


def test_a_record_without_the_text_is_named_by_its_line(embedding: Path) -> None:
    for wrong in ("no json", '{"id": 1}', '"text"', '{"body": 5}'):
        lines = f'{{"body": "x"}}\n{wrong}\n'
        done = call("embed", "--model", "words", "--jsonl", "body", home=embedding, said=lines, exits=1)
        assert done.stderr.startswith("callboard: line 2 of the input ")
        assert done.stdout == ""


def test_records_are_written_with_their_vectors(embedding: Path) -> None:
    """`--base64` writes exactly the float32 numbers."""
    lines = '{"id": 7, "body": "red cat"}\n\n{"id": 8, "body": "blue sky"}\n'
    options = ("embed", "--model", "words", "--jsonl", "body", "--dimensions", "4")
    plain = [json.loads(line) for line in call(*options, home=embedding, said=lines).stdout.splitlines()]
    packed = [
        json.loads(line) for line in call(*options, "--base64", home=embedding, said=lines).stdout.splitlines()
    ]
    assert [(line["id"], line["body"]) for line in packed] == [(7, "red cat"), (8, "blue sky")]
    for one, other in zip(plain, packed, strict=True):
        assert array("f", b64decode(other["embedding"])) == array("f", one["embedding"])


def test_a_text_that_fails_has_an_error_in_its_place(embedding: Path) -> None:
    done = call("embed", "--model", "poor:words", "fine", "bad", "good", home=embedding)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [sorted(line) for line in lines] == [["embedding", "index"], ["error", "index"], ["embedding", "index"]]
    assert done.returncode == 1
    assert "1 of 3 texts were not embedded (number 1)" in done.stderr

"""The tables of models: that each is sound, and how a row is found in it."""

from __future__ import annotations

import re
from datetime import date
from pathlib import Path

import msgspec
import pytest

from callboard.adapters.config import AdapterConfig
from callboard.adapters.contract import AdapterCapabilities
from callboard.adapters.provider import (
    FILE_NAME,
    ModelFile,
    ModelRow,
    ModelTable,
    create_adapter,
    model_table,
    tabled_vendors,
)
from callboard.adapters.requests.settings import EFFORTS

PROVIDERS = tuple(tabled_vendors())


class Toy(ModelRow, frozen=True, kw_only=True):
    thinks: bool = False

    @property
    def reasons(self) -> bool:
        return self.thinks


def table_of(provider: str) -> ModelTable[ModelRow]:
    table = model_table(provider)
    assert table is not None
    return table


def written(folder: Path, *models: dict[str, object], like: tuple[tuple[str, str], ...] = ()) -> ModelTable[Toy]:
    rows = [{"display_name": "A toy", "context_window": None, "max_output": None, **model} for model in models]
    file = {"date": "2026-11-22", "source": "made up", "models": rows, "like": like}
    (folder / FILE_NAME).write_bytes(msgspec.json.encode(file))
    module = f"toys_of_{folder.name}"
    (folder / f"{module}.py").touch()
    return ModelTable(module, ModelFile[Toy])


@pytest.fixture(autouse=True)
def modules_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)


# -- the shipped ones


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_table_says_what_its_facts_are_from_and_of_when(provider: str) -> None:
    file = table_of(provider).file
    assert date.fromisoformat(file.date) >= date(2026, 11, 22)
    assert len(file.source) > 20


@pytest.mark.parametrize("provider", PROVIDERS)
def test_every_row_is_found_by_each_of_its_names(provider: str) -> None:
    table = table_of(provider)
    for row in table.rows:
        assert all(table.listed(name) is row for name in (row.id, *row.also))
        assert all(table.by_alias(alias) is row for alias in row.aliases)


@pytest.mark.parametrize("provider", PROVIDERS)
def test_limits_and_dates_are_possible(provider: str) -> None:
    for row in table_of(provider).rows:
        window, output = row.context_window, row.max_output
        assert window is None or 1000 < window <= 10_000_000
        assert output is None or (window is not None and 1000 < output <= window)
        days = [date.fromisoformat(day) for day in (row.released, row.retires) if day is not None]
        assert days == sorted(days)


@pytest.mark.parametrize("provider", PROVIDERS)
def test_the_first_row_is_one_that_anybody_can_take(provider: str) -> None:
    first = table_of(provider).rows[0]
    assert first.general
    assert not first.deprecated
    assert first.images
    assert first.tools
    assert first.structured
    assert first.reasons


@pytest.mark.parametrize("provider", PROVIDERS)
def test_short_names_lead_to_no_model_on_its_way_out(provider: str) -> None:
    assert not [row.id for row in table_of(provider).rows if row.aliases and (row.deprecated or row.retires)]


@pytest.mark.parametrize("provider", PROVIDERS)
def test_an_adapter_says_of_each_model_what_the_table_says(provider: str) -> None:
    adapter = create_adapter(provider, AdapterConfig(), name=provider)
    for row in table_of(provider).rows:
        can = adapter.get_capabilities(row.id)
        assert can.supports_images == row.images
        assert can.supports_tools == row.tools
        assert can.supports_thinking == row.reasons
        assert can.supports_structured_output == row.structured
        assert row.context_window in (None, can.max_context_tokens)
        assert row.max_output in (None, can.max_output_tokens)


@pytest.mark.parametrize("provider", PROVIDERS)
def test_efforts_are_real_ones_and_in_order(provider: str) -> None:
    for row in table_of(provider).rows:
        efforts = [*getattr(row, "efforts", ()), *getattr(row, "levels", ())]
        assert efforts == sorted(efforts, key=EFFORTS.index)


@pytest.mark.parametrize("provider", ["openai", "gemini"])
def test_each_pattern_leads_to_a_listed_model_and_is_needed(provider: str) -> None:
    """A pattern whose every name an earlier one takes would never be asked."""
    table = table_of(provider)
    patterns = [re.compile(pattern) for pattern, _ in table.file.like]
    for place, (_, model) in enumerate(table.file.like):
        assert table.listed(model) is not None
        earlier = [pattern.pattern for pattern in patterns[:place] if pattern.match(model)]
        assert earlier == [], model


# -- how one works


def test_a_dated_name_is_the_models_own(tmp_path: Path) -> None:
    table = written(tmp_path, {"id": "toy-1"}, {"id": "toy-1-2026-01-31"})
    first, dated = table.rows
    for name in ("toy-1", "toy-1-20260131", "toy-1-latest", "toy-1-001", "toy-1@20260131"):
        assert table.listed(name) is first
    assert table.listed("toy-1-2026-01-31") is dated
    assert table.listed("toy-1-mini") is None
    assert table.listed("toy") is None


def test_what_is_not_listed_may_be_like_a_model_that_is(tmp_path: Path) -> None:
    table = written(tmp_path, {"id": "toy-1"}, {"id": "toy-2"}, like=(("toy-1", "toy-1"), (r"toy-\d", "toy-2")))
    assert table.resembling("toy-1.5") is table.rows[0]
    assert table.resembling("toy-9") is table.rows[1]
    assert table.resembling("my-toy-1") is None
    assert table.listed("toy-9") is None


@pytest.mark.parametrize("models", [
    ({"id": "a"}, {"id": "a"}),
    ({"id": "a"}, {"id": "b", "also": ["a"]}),
    ({"id": "a", "aliases": ["x"]}, {"id": "b", "aliases": ["x"]}),
    ({"id": "a"}, {"id": "b", "aliases": ["a"]}),
])  # fmt: skip
def test_a_name_belongs_to_one_model(tmp_path: Path, models: tuple[dict[str, object], ...]) -> None:
    table = written(tmp_path, *models)
    with pytest.raises(ValueError, match="two models are called"):
        table.listed("a"), table.by_alias("x")


def test_a_misspelt_field_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(msgspec.ValidationError, match="context_windov"):
        _ = written(tmp_path, {"id": "a", "context_windov": 1}).rows


def test_a_model_has_no_more_than_its_adapter_and_unknown_limits_are_the_adapters() -> None:
    row = Toy(id="t", display_name="T", context_window=None, max_output=50, images=False, thinks=True)
    adapter = AdapterCapabilities(supports_images=True, supports_tools=True, max_context_tokens=900)
    found = row.within(adapter)
    assert (found.supports_images, found.supports_tools, found.supports_thinking) == (False, True, False)
    assert (found.max_context_tokens, found.max_output_tokens) == (900, 50)

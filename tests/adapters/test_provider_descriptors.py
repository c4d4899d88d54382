"""A provider is one folder with a correct descriptor, and all warning codes are documented."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from datetime import date
from importlib import import_module
from pathlib import Path
from types import ModuleType

import msgspec
import pytest

from callboard import adapters, bus, engine, tracestore
from callboard.adapters import AdapterConfig, create_adapter
from callboard.adapters.contract import AdapterCapabilities
from callboard.adapters.http.adapter import HttpAdapter
from callboard.adapters.operations.answers import EmbeddingOnlyWire
from callboard.adapters.provider import (
    FILE_NAME,
    ModelFile,
    ModelRow,
    ModelTable,
    Provider,
    model_table,
    providers,
    tabled_vendors,
    vendors,
)
from callboard.adapters.requests.settings import EFFORTS
from callboard.adapters.transport.addresses import check_key_goes_home, host_of
from callboard.bus.errors import WarningCode
from callboard.bus.values.messages import CallWarning

from ..book.snippets import DOCS, codes

ROOT = Path(__file__).parents[2]
each_provider = pytest.mark.parametrize("provider", providers(), ids=lambda provider: provider.name)


@each_provider
def test_a_descriptor_has_the_name_of_its_folder_and_existing_places(provider: Provider) -> None:
    """The places are the adapter, the table of models, the rates and other named modules."""
    assert import_module(provider.package).PROVIDER is provider
    assert callable(provider.load(provider.adapter))
    for place in (provider.models, provider.vendor_of):
        assert place is None or provider.load(place)
    assert provider.rates is None or provider.data(provider.rates)
    assert provider.models is None or provider.vendor is not None, "a table is its vendor's"
    assert not provider.expected or provider.key_variables


@each_provider
def test_the_key_of_its_variable_is_sent_to_its_default_address(provider: Provider) -> None:
    """Without a configuration, this is the address of its adapter."""
    assert bool(provider.home) == bool(provider.key_words)
    if provider.home is None:
        return
    adapter = create_adapter(provider.name, AdapterConfig(api_key="k"), name=provider.name)
    assert isinstance(adapter, HttpAdapter)
    assert host_of(adapter.base_url) == provider.home
    for variable in provider.key_variables:
        check_key_goes_home(provider.name, variable, adapter.base_url, of_many=True)


@each_provider
def test_its_kinds_are_those_of_its_adapter_s_wires(provider: Provider) -> None:
    """The wire has the name of the folder. Adapters that play or start something else are exempt."""
    if provider.name in ("cassette", "local", "scripted"):
        return
    adapter = create_adapter(provider.name, AdapterConfig(base_url="https://x.test"), name="mine")
    assert isinstance(adapter, HttpAdapter)
    others = adapter.wire.other_wires()
    wires = {
        "chat": not isinstance(adapter.wire, EmbeddingOnlyWire),
        "embedding": others.embeddings,
        "image": others.images,
        "video": others.videos,
    }
    assert {kind for kind, wire in wires.items() if wire} == set(provider.kinds)
    assert adapter.wire.default_name == provider.name


def test_names_are_unique() -> None:
    """The names are those of adapters, of vendors in price files, and of entries without a configuration."""
    for names in (
        [provider.adapter_name for provider in providers()],
        [vendor.genai_prices for vendor in vendors() if vendor.genai_prices],
        [name for vendor in vendors() for name in vendor.litellm],
        [preset.name for provider in providers() for preset in provider.presets],
        [provider.precedence for provider in providers() if provider.expected],
    ):
        assert len(names) == len(set(names))


DATA = """
from callboard.adapters.provider import ModelFile, ModelRow, ModelTable


class Model(ModelRow, frozen=True, kw_only=True):
    reasons = False


TABLE = ModelTable(__name__, ModelFile[Model])
find_model = TABLE.resembling
"""
MODELS = {
    "date": "2026-11-22",
    "source": "nowhere",
    "models": [{"id": "parley-2", "display_name": "Parley 2", "context_window": 8000, "max_output": 1000}],
    "like": [["parley-", "parley-2"]],
}
RATES = [{"host": "", "model": "", "samples": 1, "rates": {"request": 77}}]
SEEN = """
import json
import sys
from pathlib import Path

import callboard.adapters.providers

callboard.adapters.providers.__path__.append(sys.argv[1])

from callboard.adapters import AdapterConfig, ParleyAdapter, create_adapter
from callboard.adapters.provider import published_vendor
from callboard.adapters.requests.estimate import rates_for
from callboard.bus import ConfigurationError
from callboard.engine import list_models
from callboard.engine.models.configured import read_models_yaml, registry_from_env
from callboard.engine.models.entries import AdapterEntry
from callboard.engine.models.catalogue import convert
from callboard.engine.models.registry import published_provider
from callboard.engine.models.configured import entry_of
from callboard.tracestore.otel_names import provider_names


def refused(kind, variable):
    try:
        create_adapter(kind, AdapterConfig(api_key="k", api_key_env=variable), name="mine")
    except ConfigurationError as error:
        return str(error)


file = Path(sys.argv[1], "models.yaml")
file.write_text("adapters: {mine: {type: parley}}\\nmodels: {mine:m: {adapter: mine, wire_name: m}}\\n")
configured = registry_from_env({"PARLEY_API_KEY": "k", "PARLEY_BASE_URL": "https://p.test"})
made = create_adapter("parley", AdapterConfig(api_key="k", api_key_env="PARLEY_API_KEY"), name="mine")
listing = {"parley_chat/parley-9": {"mode": "chat", "litellm_provider": "parley_chat"}}
print(json.dumps({
    "class": isinstance(made, ParleyAdapter),
    "address": made.base_url,
    "type": entry_of("mine", made).type,
    "models.yaml": read_models_yaml(file, {}).adapters["mine"].type,
    "environment": configured.adapters["parley"].config.base_url,
    "default": configured.default_provider,
    "missing": "parley" in registry_from_env({}).adapters,
    "its key elsewhere": "PARLEY_API_KEY" in refused("openai", "PARLEY_API_KEY"),
    "another's key": "api.parley.example" in refused("parley", "OPENAI_API_KEY"),
    "price list": published_provider(AdapterEntry(name="mine", type="parley", config=AdapterConfig())),
    "genai-prices": published_vendor("parley-inc"),
    "LiteLLM": convert(listing, source="", day="2026-11-22").models[0].id,
    "telemetry": provider_names()["parley"],
    "table": [info.id for info in list_models("talk")],
    "rates": [rates_for("parley", "", "m").request, rates_for("parley", "", "m").vocabulary],
}))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of providers with one provider, which is the example of the docs."""
    parley = tmp_path / "parley"
    parley.mkdir()
    (parley / "__init__.py").write_text(codes(DOCS / "adding-a-provider.md", "python")[-1])
    (parley / "data.py").write_text(DATA)
    (parley / "models.json").write_text(json.dumps(MODELS))
    (parley / "rates.json").write_text(json.dumps(RATES))
    (parley / "adapter.py").write_text((ROOT / "examples" / "adding_a_provider" / "parley.py").read_text())
    return tmp_path


def test_a_provider_only_needs_a_folder_with_a_descriptor(folder: Path) -> None:
    """Every list of providers has it, without a change elsewhere."""
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{folder}", "CALLBOARD_HOME": str(folder)}
    command = [sys.executable, "-c", SEEN, str(folder)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "class": True, "address": "https://api.parley.example", "type": "parley", "models.yaml": "parley",
        "environment": "https://p.test", "default": "parley", "missing": False, "its key elsewhere": True,
        "another's key": True, "price list": "talk", "genai-prices": "talk", "LiteLLM": "talk:parley-9",
        "telemetry": "parley.ai", "table": ["parley-2"], "rates": [77.0, "qwen"],
    }  # fmt: skip


# -- The codes of warnings are one set, which the documentation shows.


WARNING = {"CallWarning", "warn", "_warn", "_warn_once"}


def files(room: ModuleType) -> Iterator[Path]:
    assert room.__file__ is not None
    return Path(room.__file__).parent.rglob("*.py")


def test_the_page_shows_every_code_with_its_meaning() -> None:
    """The codes have the order of the set, and there is no other."""
    page = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8").split("## Warnings")[1]
    shown = [line for line in page.splitlines() if line.startswith("| `")]
    assert shown == [f"| `{code}` | {code.meaning} |" for code in WarningCode]


def test_no_code_is_written_as_a_plain_string() -> None:
    """Code that warns uses a member of the set, so that the set is complete."""
    bare = [
        f"{path}:{node.lineno}"
        for room in (bus, adapters, tracestore, engine)
        for path in files(room)
        if any(f"{name}(" in path.read_text(encoding="utf-8") for name in WARNING)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and _called(node.func) in WARNING and node.args
        if isinstance(node.args[0], ast.Constant)
    ]
    assert bare == []


def _called(function: ast.expr) -> str:
    match function:
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
        case _:
            return ""


def test_every_code_of_the_set_is_used() -> None:
    """The adapters or the engine use each code. An unused code is not documented."""
    text = "".join(path.read_text(encoding="utf-8") for room in (adapters, engine) for path in files(room))
    assert [code.name for code in WarningCode if f"WarningCode.{code.name}" not in text] == []


def test_a_code_is_stored_as_text() -> None:
    """A stored warning is read back unchanged, also one with a code of a later version."""
    for code in (*WarningCode, "of_a_later_version"):
        warning = CallWarning(code, "why")
        read = msgspec.json.decode(msgspec.json.encode(warning), type=CallWarning)
        assert read == CallWarning(str(code), "why") == warning
        assert f"{read.code}" == f"{code}"


# -- The tables of models: each is valid, and its rows are found.


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


# -- the shipped tables


@pytest.mark.parametrize("provider", PROVIDERS)
def test_every_table_has_a_source_and_possible_facts(provider: str) -> None:
    """Each row is found by each of its names, and the first one is a model that any caller can use."""
    table = table_of(provider)
    assert date.fromisoformat(table.file.date) >= date(2026, 11, 22)
    assert len(table.file.source) > 20
    first = table.rows[0]
    assert all((first.general, not first.deprecated, first.images, first.tools, first.structured, first.reasons))
    for row in table.rows:
        assert all(table.listed(name) is row for name in (row.id, *row.also))
        assert all(table.by_alias(alias) is row for alias in row.aliases)
        assert not (row.aliases and (row.deprecated or row.retires))
        window, output = row.context_window, row.max_output
        assert window is None or 1000 < window <= 10_000_000
        assert output is None or (window is not None and 1000 < output <= window)
        days = [date.fromisoformat(day) for day in (row.released, row.retires) if day is not None]
        assert days == sorted(days)
        efforts = [*getattr(row, "efforts", ()), *getattr(row, "levels", ())]
        assert efforts == sorted(efforts, key=EFFORTS.index)


@pytest.mark.parametrize("provider", PROVIDERS)
def test_an_adapter_reports_the_facts_of_the_table(provider: str) -> None:
    adapter = create_adapter(provider, AdapterConfig(), name=provider)
    for row in table_of(provider).rows:
        can = adapter.get_capabilities(row.id)
        found = (can.supports_images, can.supports_tools, can.supports_thinking, can.supports_structured_output)
        assert found == (row.images, row.tools, row.reasons, row.structured)
        assert row.context_window in (None, can.max_context_tokens)
        assert row.max_output in (None, can.max_output_tokens)


@pytest.mark.parametrize("provider", ["openai", "gemini"])
def test_each_pattern_matches_a_listed_model_and_is_needed(provider: str) -> None:
    """A pattern is useless if an earlier one matches all its names."""
    table = table_of(provider)
    patterns = [re.compile(pattern) for pattern, _ in table.file.like]
    for place, (_, model) in enumerate(table.file.like):
        assert table.listed(model) is not None
        earlier = [pattern.pattern for pattern in patterns[:place] if pattern.match(model)]
        assert earlier == [], model


# -- the search in a table


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

"""A provider is one folder with a true descriptor; and the warning codes are one documented set."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import msgspec
import pytest

from callboard import adapters, bus, engine, tracestore
from callboard.adapters import AdapterConfig, create_adapter
from callboard.adapters.http.adapter import HttpAdapter
from callboard.adapters.operations.answers import EmbeddingOnlyWire
from callboard.adapters.provider import Provider, providers, vendors
from callboard.adapters.transport.addresses import check_key_goes_home, host_of
from callboard.bus.errors import WarningCode
from callboard.bus.values.messages import CallWarning

from ..book.snippets import DOCS, codes

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "adding_a_provider"
each_provider = pytest.mark.parametrize("provider", providers(), ids=lambda provider: provider.name)


@each_provider
def test_a_descriptor_is_called_as_its_folder_and_its_places_exist(provider: Provider) -> None:
    """The adapter, the table of models, the rates and whatever else it names."""
    assert import_module(provider.package).PROVIDER is provider
    assert callable(provider.load(provider.adapter))
    for place in (provider.models, provider.vendor_of):
        assert place is None or provider.load(place)
    assert provider.rates is None or provider.data(provider.rates)
    assert provider.models is None or provider.vendor is not None, "a table is its vendor's"
    assert not provider.expected or provider.key_variables


@each_provider
def test_the_key_of_its_own_variable_goes_to_its_home(provider: Provider) -> None:
    """Its home is the address that its adapter has unless one is configured."""
    assert bool(provider.home) == bool(provider.key_words)
    if provider.home is None:
        return
    adapter = create_adapter(provider.name, AdapterConfig(api_key="k"), name=provider.name)
    assert isinstance(adapter, HttpAdapter)
    assert host_of(adapter.base_url) == provider.home
    for variable in provider.key_variables:
        check_key_goes_home(provider.name, variable, adapter.base_url, of_many=True)


@each_provider
def test_its_kinds_are_those_that_its_adapter_has_wires_for(provider: Provider) -> None:
    """And the wire is called as the folder is. What plays or starts something else is its own witness."""
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


def test_names_are_given_once() -> None:
    """Of adapters, of what price files call vendors, and of what is there without a configuration."""
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
from callboard.engine.models.known_models import convert
from callboard.engine.models.registry import published_provider
from callboard.engine.models.configured import entry_of
from callboard.tracestore.export.otel_names import provider_names


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
CHECKED = """
import runpy
import sys

import callboard.adapters.providers

callboard.adapters.providers.__path__.append(sys.argv.pop())
sys.argv.append("parley_kit:PARLEY")
runpy.run_module("callboard.adapters.conformance", run_name="__main__")
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of providers with one: the example of the docs as a provider of the tree."""
    parley = tmp_path / "parley"
    parley.mkdir()
    (parley / "__init__.py").write_text(codes(DOCS / "adding-a-provider.md", "python")[-1])
    (parley / "data.py").write_text(DATA)
    (parley / "models.json").write_text(json.dumps(MODELS))
    (parley / "rates.json").write_text(json.dumps(RATES))
    (parley / "adapter.py").write_text((EXAMPLE / "parley.py").read_text())
    kit = (
        (EXAMPLE / "kit.py")
        .read_text()
        .replace("from .parley", "from callboard.adapters.providers.parley.adapter")
    )
    (tmp_path / "parley_kit.py").write_text(kit)
    return tmp_path


def run(folder: Path, code: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{folder}", "CALLBOARD_HOME": str(folder)}
    return subprocess.run(
        [sys.executable, "-c", code, str(folder)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_folder_with_a_descriptor_is_all_that_a_provider_needs(folder: Path) -> None:
    """Every list of providers has it, without an edit elsewhere."""
    done = run(folder, SEEN)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "class": True,
        "address": "https://api.parley.example",
        "type": "parley",
        "models.yaml": "parley",
        "environment": "https://p.test",
        "default": "parley",
        "missing": False,
        "its key elsewhere": True,
        "another's key": True,
        "price list": "talk",
        "genai-prices": "talk",
        "LiteLLM": "talk:parley-9",
        "telemetry": "parley.ai",
        "table": ["parley-2"],
        "rates": [77.0, "qwen"],
    }


def test_an_adapter_of_such_a_folder_passes_the_conformance_kit(folder: Path) -> None:
    """By the command of the docs."""
    done = run(folder, CHECKED)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " 0 failed" in done.stdout


# -- The codes of warnings are one set, which the documentation shows as it is.


WARNING = {"CallWarning", "warn", "_warn", "_warn_once"}


def files(room: ModuleType) -> Iterator[Path]:
    assert room.__file__ is not None
    return Path(room.__file__).parent.rglob("*.py")


def test_the_page_shows_every_code_with_its_meaning() -> None:
    """In the order of the set, and no other."""
    page = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8").split("## Warnings")[1]
    shown = [line for line in page.splitlines() if line.startswith("| `")]
    assert shown == [f"| `{code}` | {code.meaning} |" for code in WarningCode]


@pytest.mark.parametrize("room", [bus, adapters, tracestore, engine], ids=lambda room: room.__name__)
def test_no_code_of_ours_is_written_as_a_bare_string(room: ModuleType) -> None:
    """Whoever warns takes a member of the set, so that none is forgotten in it."""
    bare = [
        f"{path}:{node.lineno}"
        for path in files(room)
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
    """By the adapters or the engine; one that nobody emits is no longer documented."""
    text = "".join(path.read_text(encoding="utf-8") for room in (adapters, engine) for path in files(room))
    assert [code.name for code in WarningCode if f"WarningCode.{code.name}" not in text] == []


@pytest.mark.parametrize("code", WarningCode)
def test_a_code_is_text_to_programs_and_files(code: WarningCode) -> None:
    """A stored warning is read back as it was, and so is one with a code of a later version."""
    written = msgspec.json.encode(CallWarning(code, "why"))
    assert (
        msgspec.json.decode(written, type=CallWarning) == CallWarning(str(code), "why") == CallWarning(code, "why")
    )
    assert f"{code}" == code.value
    later = CallWarning("of_a_later_version", "why")
    assert msgspec.json.decode(msgspec.json.encode(later), type=CallWarning) == later

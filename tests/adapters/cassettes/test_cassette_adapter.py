"""A provider that is a cassette, set up by configuration alone."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from callboard.adapters import AdapterConfig, create_adapter
from callboard.adapters.cassettes import CassetteMiss, RecordingTransport
from callboard.adapters.conformance import FakeTransport, check_stream
from callboard.bus.errors import ConfigurationError
from callboard.bus.values.base import Json
from callboard.engine.models.configured import read_models_yaml
from examples.adding_a_provider.kit import PARLEY
from examples.adding_a_provider.parley import ParleyAdapter

from ...support.fake_http import request
from ...support.virtual_time import FakeClock

pytestmark = pytest.mark.anyio

PARLEY_TYPE = "examples.adding_a_provider.parley:ParleyAdapter"


@pytest.fixture
async def cassette(tmp_path: Path) -> Path:
    """A stream and a whole reply of Parley's."""
    file = tmp_path / "parley.json"
    network = RecordingTransport(FakeTransport(PARLEY.streamed("Hello."), PARLEY.whole("Again.")), file)
    adapter = ParleyAdapter(AdapterConfig(), transport=network, clock=FakeClock())
    assert [event async for event in adapter.stream(request())]
    await adapter.complete(request())
    await adapter.close()
    return file


async def test_models_yaml_can_name_a_cassette(cassette: Path, tmp_path: Path) -> None:
    """Calls are answered from it, streamed or not; one that wasn't recorded says so."""
    file = tmp_path / "models.yaml"
    options = {"type": PARLEY_TYPE, "file": str(cassette)}
    adapters = {"demo": {"type": "cassette", "options": options}}
    models = {"demo:one": {"adapter": "demo", "wire_name": "one"}}
    file.write_bytes(msgspec.json.encode({"adapters": adapters, "models": models}))  # JSON is YAML
    entry = read_models_yaml(file, {}).adapters["demo"]
    adapter = create_adapter(entry.type, entry.config, name="demo", clock=FakeClock())
    last = check_stream([event async for event in adapter.stream(request())])
    assert [block.text for block in last.final_content if hasattr(block, "text")] == ["Hello."]
    assert (await adapter.complete(request())).text == "Again."
    with pytest.raises(CassetteMiss):
        await adapter.complete(request())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"type": PARLEY_TYPE}, "missing required field `file`"),
        ({"type": PARLEY_TYPE, "file": "no-such-file.json"}, "with `record: true` it is made"),
        ({"type": "no_such_type", "file": "x", "record": True}, "no_such_type"),
    ],
)
async def test_a_wrong_configuration_is_named(options: dict[str, Json], said: str) -> None:
    """With the option that is wrong."""
    with pytest.raises(ConfigurationError) as raised:
        create_adapter("cassette", AdapterConfig(options=options), name="demo")
    assert said in str(raised.value)


async def test_recording_is_an_option(tmp_path: Path) -> None:
    """The file is written when the adapter is closed."""
    file = tmp_path / "new.json"
    options: dict[str, Json] = {"type": PARLEY_TYPE, "file": str(file), "record": True}
    adapter = create_adapter("cassette", AdapterConfig(options=options), name="demo")
    assert isinstance(adapter, ParleyAdapter)
    await adapter.close()
    assert file.exists()

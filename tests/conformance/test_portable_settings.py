"""Sampling, verbosity, user and effort, everywhere: each is sent, or left out with a warning that names it."""

from __future__ import annotations

from collections.abc import Iterator

import anyio
import msgspec
import pytest

from callboard.adapters.config import AdapterConfig
from callboard.adapters.conformance import Says
from callboard.adapters.http.adapter import HttpAdapter
from callboard.adapters.registry import create_adapter, model_table, tabled_vendors
from callboard.adapters.requests.settings import EFFORTS, PORTABLE
from callboard.bus.values.base import JsonObject
from callboard.bus.values.messages import CallWarning

from ..support.fake_http import request
from ..support.wires import QUIRKY, WIRES, Wire

EVERYWHERE = (*WIRES, *QUIRKY)
SETTINGS: dict[str, object] = {
    "temperature": 0.5,
    "top_p": 0.5,
    "frequency_penalty": 0.5,
    "presence_penalty": -0.5,
    "seed": 7,
    "user": "u_1",
    "verbosity": "low",
    "background": True,
}
AT_THE_EDGE: dict[str, object] = {
    "temperature": 0.0,
    "top_p": 0.0,
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
    "seed": 0,
}


def named(wire: Wire) -> str:
    return f"{wire.name}-{wire.quirks}" if hasattr(wire, "quirks") else type(wire).__name__


def sent(wire: Wire, **changes: object) -> tuple[JsonObject, tuple[CallWarning, ...]]:
    """The body of a request on a wire, and the reply's warnings."""

    async def ask() -> tuple[JsonObject, tuple[CallWarning, ...]]:
        async with wire.stage(Says("Hello", streamed=False)) as stage:
            reply = await stage.adapter.complete(request(model=stage.model, max_output_tokens=4096, **changes))
            return msgspec.json.decode(stage.requests[-1].body), reply.warnings

    return anyio.run(ask)


def about(name: str, warnings: tuple[CallWarning, ...]) -> list[CallWarning]:
    return [warning for warning in warnings if name in warning.message]


def test_all_settings_are_tried_here() -> None:
    assert set(SETTINGS) == set(PORTABLE)


@pytest.mark.parametrize("wire", EVERYWHERE, ids=named)
@pytest.mark.parametrize("settings", [SETTINGS, AT_THE_EDGE], ids=["usual", "edge"])
def test_a_setting_is_either_sent_or_named_in_one_warning(wire: Wire, settings: dict[str, object]) -> None:
    plain, _ = sent(wire)
    for name, value in settings.items():
        body, warnings = sent(wire, **{name: value})
        assert (body != plain, len(about(name, warnings))) in ((True, 0), (False, 1)), name


@pytest.mark.parametrize("wire", EVERYWHERE, ids=named)
@pytest.mark.parametrize("effort", EFFORTS[1:])
def test_an_effort_is_sent_or_named_in_a_warning(wire: Wire, effort: str) -> None:
    """Sent is what differs from saying nothing, or from ``none``, where there is a default or a least effort."""
    plain, none = sent(wire)[0], sent(wire, reasoning_effort="none")[0]
    body, warnings = sent(wire, reasoning_effort=effort)
    assert body != plain or body != none or about("effort", warnings)


# -- every model that is known


def known() -> Iterator[tuple[str, str]]:
    for provider in tabled_vendors():
        table = model_table(provider)
        assert table is not None
        for row in table.rows:
            yield provider, row.id


def written(adapter: HttpAdapter, model: str, **changes: object) -> tuple[JsonObject, tuple[CallWarning, ...]]:
    wire = adapter.write_request(request(model=model, max_output_tokens=4096, **changes), stream=False)
    return msgspec.json.decode(wire.body), wire.warnings


@pytest.mark.parametrize(("provider", "model"), tuple(known()))
def test_each_known_model_is_sent_what_it_takes_and_no_more(provider: str, model: str) -> None:
    """What is in its table decides; a setting or an effort never just disappears."""
    adapter = create_adapter(provider, AdapterConfig(api_key="k", base_url="https://provider.test"), name=provider)
    assert isinstance(adapter, HttpAdapter)
    can, name = adapter.get_capabilities(model), f"{provider}:{model}"
    plain, _ = written(adapter, name)
    for setting, value in SETTINGS.items():
        body, warnings = written(adapter, name, **{setting: value})
        assert (body != plain, len(about(setting, warnings))) in ((True, 0), (False, 1)), setting
    for effort in EFFORTS:
        body, warnings = written(adapter, name, reasoning_effort=effort)
        if can.supports_thinking:
            assert body != plain or effort == "none"
        else:
            assert body == plain
            assert about("effort", warnings) or effort == "none"

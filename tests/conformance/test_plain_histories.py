"""What is plain text of a user and an assistant in turn is written in one go, and comes out as if it were not."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callboard.adapters.config import AdapterConfig
from callboard.adapters.contract import CanonicalRequest
from callboard.adapters.http.adapter import HttpAdapter
from callboard.adapters.requests import history
from callboard.bus.errors import AdapterError
from callboard.bus.values.messages import Message, Role

from ..support.canonical_requests import MESSAGES, canonical_requests
from ..support.wires import WIRES, Wire

SAID = st.text("ab \n☃", max_size=3) | st.just("Word " * 4000)
HISTORIES = st.lists(SAID, max_size=7).map(
    lambda texts: [Message((Role.USER, Role.ASSISTANT)[n % 2], text) for n, text in enumerate(texts)]
)


def written(adapter: HttpAdapter, request: CanonicalRequest) -> object:
    try:
        call = adapter.write_request(request, stream=False)
    except AdapterError as refusal:
        return type(refusal), str(refusal)
    return call.body, call.warnings, call.headers


@pytest.mark.parametrize(
    "wire", [wire for wire in WIRES if issubclass(wire.adapter, HttpAdapter)], ids=lambda wire: wire.name
)
@settings(max_examples=60)
@given(data=st.data())
def test_a_request_is_the_same_however_its_history_is_taken(wire: Wire, data: st.DataObject) -> None:
    adapter = wire.adapter(AdapterConfig(api_key="k", base_url="https://api.example.com/v1"))
    said = data.draw(HISTORIES) + data.draw(st.lists(MESSAGES, max_size=3))
    request = data.draw(canonical_requests([f"{wire.type_name}:some-model"]))
    request = msgspec.structs.replace(request, messages=tuple(said))
    at_once = written(adapter, request)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(history, "_plain_beginning", lambda messages: ())
        assert at_once == written(adapter, request)

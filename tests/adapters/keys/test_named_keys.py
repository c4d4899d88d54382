"""Keys by name: a call that names one is sent with that one, and with no other."""

from __future__ import annotations

import traceback

import pytest

from callboard.adapters import AttemptReport, AttemptStarted
from callboard.adapters.videos import VideoJob, VideoTerms
from callboard.bus.errors import AuthError, ConfigurationError, InvalidRequestError

from ...support.fake_http import request
from .sources import NEW, OLD, ROWS, Gate, Vault, adapter_of

pytestmark = pytest.mark.anyio
ACME, BETA = "sk-of-acme-0123456789", "sk-of-beta-0123456789"
TENANTS = {"acme": ACME, "beta": BETA}


@pytest.mark.parametrize("row", ROWS)
async def test_a_call_is_sent_with_the_key_that_it_names(row: str) -> None:
    """On every wire that sends a key, and with the adapter's own key where it names none."""
    kind, ask = ROWS[row]
    gate = Gate(ACME, BETA, OLD)
    adapter = adapter_of(kind, gate, api_key=OLD, keys=TENANTS)
    for key in ("acme", "beta", None, "acme"):
        with pytest.raises(InvalidRequestError):
            await ask(adapter, key)
    assert gate.sent == [ACME, BETA, OLD, ACME]
    await adapter.close()


@pytest.mark.parametrize("row", ROWS)
async def test_an_unknown_name_is_told_with_those_that_there_are(row: str) -> None:
    """Before anything is sent."""
    kind, ask = ROWS[row]
    gate = Gate(ACME)
    adapter = adapter_of(kind, gate, api_key=OLD, keys=TENANTS)
    with pytest.raises(ConfigurationError) as raised:
        await ask(adapter, "gamma")
    assert str(raised.value) == "mine has no key 'gamma': its keys are acme, beta"
    assert gate.sent == []
    await adapter.close()


@pytest.mark.parametrize("row", ["anthropic whole", "gemini streamed", "cohere embeddings", "openai images"])
async def test_a_refused_tenant_is_not_served_with_another_s_key(row: str) -> None:
    """Whatever other keys there are, and whether or not they stand in a pool."""
    kind, ask = ROWS[row]
    gate = Gate(BETA, OLD)
    adapter = adapter_of(kind, gate, api_key=OLD, keys=TENANTS, key_pool=("beta", "acme"))
    for _ in range(2):
        with pytest.raises(AuthError):
            await ask(adapter, "acme")
    assert gate.sent == [ACME, ACME]
    await adapter.close()


async def test_where_all_keys_have_names_a_call_must_say_one() -> None:
    """No tenant's key serves a call that is nobody's."""
    gate = Gate(ACME)
    adapter = adapter_of("anthropic", gate, keys=TENANTS)
    with pytest.raises(ConfigurationError, match="say key=; its keys are acme, beta"):
        await adapter.complete(request(model="mine:m"))
    assert gate.sent == []
    await adapter.close()


def test_a_pool_of_keys_that_are_not_there_is_refused_at_once() -> None:
    """When the adapter is made."""
    with pytest.raises(ConfigurationError, match="mine has no key 'gamma': its keys are acme, beta"):
        adapter_of("anthropic", Gate(), keys=TENANTS, key_pool=("acme", "gamma"))


async def test_a_named_key_may_come_from_a_vault() -> None:
    """It is asked for again when it is refused, as the adapter's own key is."""
    gate, vault = Gate(NEW), Vault(OLD, NEW)
    adapter = adapter_of("openai", gate, keys={"acme": vault})
    with pytest.raises(InvalidRequestError):
        await adapter.complete(request(model="mine:m", key="acme"))
    assert (gate.sent, vault.asked) == ([OLD, NEW], 2)
    await adapter.close()


async def test_what_keeps_a_named_key_from_coming_says_its_name() -> None:
    """So that whoever reads it knows which entry to mend."""

    def broken() -> str:
        raise OSError(ACME)

    adapter = adapter_of("openai", Gate(), keys={"acme": broken})
    with pytest.raises(
        AuthError, match=r"^mine: no key could be had from keys\['acme'\]: it raised OSError"
    ) as raised:
        await adapter.complete(request(model="mine:m", key="acme"))
    assert ACME not in "".join(traceback.format_exception(raised.value))
    await adapter.close()


async def test_each_attempt_tells_the_name_of_its_key() -> None:
    """The name, and never the value."""
    reports: list[AttemptReport] = []
    adapter = adapter_of("openai", Gate(ACME, OLD), api_key=OLD, keys=TENANTS)
    for key in ("acme", None):
        with pytest.raises(InvalidRequestError):
            await adapter.complete(request(model="mine:m", key=key), on_attempt=reports.append)
    assert [report.key for report in reports if isinstance(report, AttemptStarted)] == ["acme", None]
    assert ACME not in repr(reports)
    await adapter.close()


async def test_a_job_is_fetched_with_the_key_that_it_was_created_with() -> None:
    """Its file belongs to that account."""
    gate = Gate(ACME)
    adapter = adapter_of("openai", gate, api_key=OLD, keys=TENANTS)
    job = VideoJob(
        id="video_1", model="mine:sora-2", provider="mine", status="completed", terms=VideoTerms(key="acme")
    )
    with pytest.raises(InvalidRequestError):
        await adapter.open_video(job)
    assert gate.sent == [ACME]
    await adapter.close()


@pytest.mark.parametrize("row", ROWS)
async def test_a_named_key_that_a_server_repeats_is_seen_nowhere(row: str) -> None:
    """As the adapter's own key isn't."""
    kind, ask = ROWS[row]
    adapter = adapter_of(kind, Gate(ACME), api_key=OLD, keys=TENANTS)
    with pytest.raises(InvalidRequestError) as raised:
        await ask(adapter, "acme")
    error = raised.value
    seen = [str(error), repr(vars(error)), "".join(traceback.format_exception(error)), repr(adapter.config)]
    assert "***" in seen[1]
    assert not [text for text in seen if ACME in text or OLD in text]
    await adapter.close()

"""Sections 3.1 and 8: an adapter is made, used, watched and closed, and its key goes nowhere else."""

from __future__ import annotations

import contextlib
import io
import logging
import traceback
from collections.abc import Callable, Iterator

from callboard.adapters.conformance.asking import SOON, hear_well, keyed, over_http
from callboard.adapters.conformance.checking import check
from callboard.adapters.conformance.invariants import check_stream, require
from callboard.adapters.conformance.kit import KEY, TOOLS, Fails, Kit, Says, Unreachable
from callboard.adapters.contract import AdapterCapabilities, AttemptReport, ProviderAdapter
from callboard.adapters.health import AdapterHealth, AdapterStatistics, ChecksHealth, ReportsStatistics
from callboard.bus.errors import AdapterError
from callboard.bus.values.messages import Message


@check("3.1", "Model mapping defined")
async def it_has_the_contracts_methods(kit: Kit) -> None:
    """Name, capabilities and every method of ProviderAdapter are there."""
    async with kit.stage() as at:
        require(
            isinstance(at.adapter, ProviderAdapter), f"{type(at.adapter).__name__} lacks part of ProviderAdapter"
        )
        require(at.adapter.name == kit.name, f"its name is {at.adapter.name!r}, the kit says {kit.name!r}")


@check("3.4", "Model mapping defined")
async def any_model_has_capabilities(kit: Kit) -> None:
    """`get_capabilities` answers for a model that nobody knows, with limits above 0, and asks nobody."""
    async with kit.stage() as at:
        for model in (kit.model, "nobody-knows-it"):
            found = at.adapter.get_capabilities(model)
            require(isinstance(found, AdapterCapabilities), f"the capabilities of {model!r} are {found!r}")
            require(found.max_output_tokens > 0 and found.max_context_tokens > 0, f"its limits are {found}")
        require(at.asked() == 0, "it asked the provider")


@check("3.1")
async def the_estimate_asks_nobody(kit: Kit) -> None:
    """`estimate_input_tokens` is above 0, grows with the text, and sends nothing."""
    async with kit.stage() as at:
        short = at.adapter.estimate_input_tokens([Message.user("Hello")])
        long = at.adapter.estimate_input_tokens([Message.user("Hello " * 100)], TOOLS, "Be brief.")
        require(0 < short < long, f"estimated {short} for a word and {long} for a hundred with tools")
        require(at.asked() == 0, "it asked the provider")


@check("3.1")
async def lifecycle_hooks_are_optional(kit: Kit) -> None:
    """`initialize`, `health_check` and `statistics` may be absent. If one is there, it works and never raises."""
    async with kit.stage(Says("Hi.", streamed=False)) as at:
        initialize = getattr(at.adapter, "initialize", None)
        if initialize is not None:
            await initialize()
            await initialize()
        require((await at.adapter.complete(at.request())).text == "Hi.", "it does not answer")
        if isinstance(at.adapter, ReportsStatistics):
            found = at.adapter.statistics()
            require(isinstance(found, AdapterStatistics), f"statistics() is {found!r}")
            require(found.calls == 0, f"no call runs, and {found.calls} are counted")
    for scene in (Says("Hi.", streamed=False), Fails("bad key"), Unreachable()):
        async with kit.stage(scene) as at:
            if isinstance(at.adapter, ChecksHealth):
                health = await at.adapter.health_check()
                require(isinstance(health, AdapterHealth | bool), f"health_check() is {health!r}")


@check("3.1")
async def it_can_be_closed_unused_and_twice(kit: Kit) -> None:
    """`close()` works on an adapter that was never used, and again."""
    async with kit.stage() as at:
        await at.adapter.close()
        await at.adapter.close()


@check("8")
async def the_key_is_in_one_header_only(kit: Kit) -> None:
    """The key stands in at most one header, never in the address or the body."""
    keyed(kit)
    over_http(kit)
    async with kit.stage(Says("Hi.", streamed=False), Says("Hi.")) as at:
        await at.adapter.complete(at.request())
        check_stream(await hear_well(at))
        for request in at.requests or ():
            headers = [name for name, value in request.headers.items() if KEY in value]
            require(len(headers) <= 1, f"the key is in {headers}")
            require(KEY not in request.url, "the key is in the address, which ends up in logs")
            require(KEY not in request.body.decode("utf-8", "replace"), "the key is in the body")


@check("8")
async def the_key_is_in_no_text(kit: Kit) -> None:
    """The key is in no repr, error, traceback, report or log line, even where the provider repeats it."""
    keyed(kit)
    found: list[str] = []
    with _listening() as logged:
        for streamed in (False, True):
            for condition in ("bad key", "server", "rate limit"):
                async with kit.stage_or_none(
                    *[Fails(condition, says=f"key {KEY}")] * 2, max_retries=1, retry=SOON
                ) as at:
                    if at is None:
                        continue
                    texts = {"repr(adapter)": repr(at.adapter), "str(adapter)": str(at.adapter)}
                    config = getattr(at.adapter, "config", None)
                    texts["repr(adapter.config)"] = repr(config)
                    reports: list[AttemptReport] = []
                    try:
                        if streamed:
                            async for _ in at.adapter.stream(at.request(), on_attempt=reports.append):
                                pass
                        else:
                            await at.adapter.complete(at.request(), on_attempt=reports.append)
                    except AdapterError as error:
                        texts["the error's text"] = str(error)
                        texts["the error's fields"] = repr(vars(error))
                        texts["the error's args"] = repr(error.args)
                        texts["the traceback"] = "".join(traceback.format_exception(error))
                    texts["the attempts' reports"] = repr(reports)
                    found += [f"{what} ({condition})" for what, text in texts.items() if KEY in text]
    if KEY in logged():
        found.append("what was logged or printed")
    require(not found, f"the key is in {', '.join(dict.fromkeys(found))}")


class _Recorder(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


@contextlib.contextmanager
def _listening() -> Iterator[Callable[[], str]]:
    """Everything that is logged or printed meanwhile."""
    recorder, printed = _Recorder(), io.StringIO()
    root = logging.getLogger()
    level = root.level
    root.addHandler(recorder)
    root.setLevel(logging.DEBUG)
    try:
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            yield lambda: printed.getvalue() + "\n".join(recorder.lines)
    finally:
        root.removeHandler(recorder)
        root.setLevel(level)

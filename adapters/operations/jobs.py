"""Jobs over HTTP, for videos and batches: created once, found again, and polled.

creating    the request is sent once, and repeated only if the provider certainly did not run it
searching   the answer was lost; the provider's list is searched three times for the one possible job
asking      each request about a job is sent once and ends after 30 seconds; its caller may repeat it
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TypeVar

import anyio
import msgspec

from callboard.adapters.batches import BatchJob
from callboard.adapters.http.client import HttpClient
from callboard.adapters.http.retry import backoff_delay
from callboard.adapters.http.wire_call import WireCall
from callboard.adapters.videos import VideoJob
from callboard.bus.errors import AdapterError, OutcomeUnknownError, RequestTimeoutError, WarningCode
from callboard.bus.values.messages import CallWarning

from ..contract import CallRequest
from ..http.attempts import HttpAttempts, fetch

T = TypeVar("T")
J = TypeVar("J", VideoJob, BatchJob)
Read = Callable[[bytes, Mapping[str, str]], T]

QUESTION_SECONDS = 30.0
"""The time limit of a request about a job, in seconds."""

CLOCKS_APART = 60
"""Seconds by which the provider's clock may be behind ours."""

_LOOKS = 3
"""The number of searches for an unconfirmed job. Each follows a retry's wait."""


class HttpJobs:
    """A provider's jobs of one kind, on the client of its conversations."""

    def __init__(self, client: HttpClient) -> None:
        self._client = client
        self._handed_out: set[str] = set()  # the ids of the jobs created or found here

    async def _create_once(
        self,
        attempts: HttpAttempts,
        call: WireCall,
        read: Read[J],
        request: CallRequest,
        search: Callable[[], Awaitable[J | None]] | None,
    ) -> J:
        """The job that a request creates, or created before its answer was lost.

        `search` looks for that job once. It is None for a provider that doesn't list its jobs.
        """
        try:
            job, reply = await fetch(attempts, call, read)
        except OutcomeUnknownError as error:
            found = None if search is None else await self._search_again(attempts, request, search)
            if found is None:
                raise
            job = found_again(found, str(error))
        else:
            job = msgspec.structs.replace(job, provider_request_id=reply.provider_request_id)
        self._handed_out.add(job.id)
        attempts.first_event({})
        return job

    async def _search_again(
        self, attempts: HttpAttempts, request: CallRequest, search: Callable[[], Awaitable[J | None]]
    ) -> J | None:
        client = self._client
        policy = request.retry or client.config.retry
        for look in range(_LOOKS):
            seconds = backoff_delay(look, policy, client.clock.random())
            try:
                await attempts.wait(partial(anyio.sleep, seconds), what="another look")
            except RequestTimeoutError:  # the call's own time is up, and the outcome is still unknown
                return None
            try:
                found = await search()
            except OutcomeUnknownError:  # several jobs match
                raise
            except AdapterError:
                continue
            if found is not None:
                return found
        return None

    async def _ask(self, call: WireCall, read: Read[T], model: str, key: str | None) -> T:
        """The answer to a request about a job."""
        attempts = HttpAttempts(self._client, self._question(model, key), None)
        found, _ = await attempts.run(lambda: fetch(attempts, call, read))
        return found

    def _question(self, model: str, key: str | None) -> CallRequest:
        """A request about a job, with the key that created it."""
        client = self._client
        return CallRequest(
            request_id=client.clock.new_id("req"),
            model=f"{client.name}:{model}",
            key=key,
            max_retries=0,
            timeout_seconds=QUESTION_SECONDS,
        )


def found_again(job: J, why: str) -> J:
    """The job with a warning that its creation was not confirmed."""
    said = f"the answer to its creation was lost ({why}); it was found in the provider's list"
    return msgspec.structs.replace(job, warnings=(CallWarning(WarningCode.FOUND_AGAIN, said),))

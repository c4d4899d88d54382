"""Videos: a job is created by one call; what it comes to is a call of its own, when that is known.

So nothing in the trace is left open while a job runs, whatever becomes of this process: whoever sees its end first
counts it, and whoever comes later finds it counted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypedDict
from weakref import WeakKeyDictionary, WeakValueDictionary

import msgspec

from adapters import AttemptObserver, CapabilityError, RetryPolicy, TokenUsage
from adapters.contract import ProviderAdapter
from adapters.videos import PollPolicy, VideoAdapter, VideoJob, VideoRequest, VideoTerms
from adapters.videos.wire import check as check_request
from bus import JobCreated, RoutingDecision
from bus.values.json import Json

from ..calls.events import EventScene, Served
from ..calls.plain_call import PlainCall, first_that_works
from ..calls.serving import examiner, scene_of
from ..calls.slots import arrival
from ..models.published_prices import published_name
from ..routing.candidates import Named, Route, expand
from ..runtime.borrowed_adapters import BorrowedAdapters
from ..runtime.runtime import Runtime
from .inputs import ImageInput, Models, image_block
from .job_call import JobAsReply, JobOrigin
from .video_handle import VideoHandle, stored_job

GRACE_SECONDS = 10.0
"""Whoever is cancelled while a job is being created waits so long for its id, so that it isn't lost."""


class VideoOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How to make a video.

    seconds: its length. size: ``WIDTHxHEIGHT``. first_frame: an image to begin with. audio: with or without sound.
    What the model hasn't is a CapabilityError before anything is sent. fallback: names of other models, tried in
    order if one surely made nothing; None leaves it to models.yaml. provider_options: merged into the request.
    max_retries, retry, timeout_seconds: of its creation, instead of the adapter's. polling: when to look at the
    job. tags: of its calls, in the trace.
    """

    seconds: int | None = None
    size: str | None = None
    first_frame: ImageInput | None = None
    audio: bool | None = None
    fallback: Sequence[str] | None = None
    provider_options: Mapping[str, Json] = {}
    max_retries: int | None = None
    retry: RetryPolicy | None = None
    timeout_seconds: float | None = None
    polling: PollPolicy = PollPolicy()
    tags: Mapping[str, str] = {}


class VideoArguments(TypedDict, total=False):
    """The fields of `VideoOptions` as keyword arguments, for type checkers."""

    seconds: int | None
    size: str | None
    first_frame: ImageInput | None
    audio: bool | None
    fallback: Sequence[str] | None
    provider_options: Mapping[str, Json]
    max_retries: int | None
    retry: RetryPolicy | None
    timeout_seconds: float | None
    polling: PollPolicy
    tags: Mapping[str, str]


async def create_video(runtime: Runtime, prompt: str, model: Models, options: VideoOptions) -> VideoHandle:
    """See `MediaMethods.create_video`."""
    plan = expand(runtime.registry, model, options.fallback)
    frame = None if options.first_frame is None else image_block(options.first_frame)
    await runtime.host.start()
    await runtime.host.admit()
    runtime.pricing.notice()
    borrowed, order = BorrowedAdapters(runtime), arrival()

    def request_to(named: Named, request_id: str) -> VideoRequest:
        entry = named.entry
        return VideoRequest(
            request_id=request_id,
            model=f"{entry.adapter}:{entry.wire_name}",
            prompt=prompt,
            seconds=options.seconds,
            size=options.size,
            first_frame=frame,
            audio=options.audio,
            provider_options=options.provider_options,
            max_retries=entry.max_retries if options.max_retries is None else options.max_retries,
            retry=options.retry or entry.retry,
            timeout_seconds=options.timeout_seconds,
        )

    def check(adapter: ProviderAdapter, named: Named) -> None:
        can = _maker(adapter, named).get_video_capabilities(named.entry.wire_name)
        check_request(request_to(named, ""), can)

    async def call(route: Route, request_id: str, caused_by: str | None) -> VideoHandle:
        named = route.option.named
        running = await borrowed.ready(route.decision, request_id)
        request = request_to(named, request_id)

        async def work(adapter: ProviderAdapter, on_attempt: AttemptObserver) -> JobAsReply:
            job = await _maker(adapter, named).create_video(request, on_attempt=on_attempt)
            return JobAsReply(job, TokenUsage())  # what it costs is known when it is over

        scene = scene_of(runtime, route, running, caused_by, options.tags)

        def tell(created: Served) -> None:
            assert isinstance(created, JobAsReply)
            event = _created(created.job, route.decision.model)
            runtime.bus.publish(event, request_id=request_id, tags=scene.tags)

        call = PlainCall("video_create", request_id, scene, grace=GRACE_SECONDS, on_answer=tell)
        created, _ = await call.run(running.ref, running.slots, order, work)
        origin = _origin_of(route, request_id, scene, options.polling)
        return _known(runtime, VideoHandle(runtime, created.job, origin))

    try:
        with runtime.in_flight.call():
            return await first_that_works(runtime, "video_create", plan, examiner(runtime, check), call)
    finally:
        borrowed.end()


def _origin_of(route: Route, request_id: str, scene: EventScene, polling: PollPolicy) -> JobOrigin:
    """What the handle of a job must know that was created just now."""
    return JobOrigin(
        decision=route.decision,
        wire_model=route.option.named.entry.wire_name,
        created_by=request_id,
        priced_as=scene.priced_as,
        tags=scene.tags,
        polling=polling,
    )


def _created(job: VideoJob, model: str) -> JobCreated:
    return JobCreated(
        job_id=job.id,
        kind="video",
        provider=job.provider,
        model=model,
        status=job.status,
        seconds=job.terms.seconds,
        size=job.terms.size,
        audio=job.terms.audio,
    )


async def resume_video(
    runtime: Runtime, job_id: str, model: str, asked: VideoTerms, polling: PollPolicy
) -> VideoHandle:
    """See `MediaMethods.resume_video`."""
    named = expand(runtime.registry, model, ()).named[0]
    entry = named.entry
    await runtime.host.start()
    runtime.pricing.notice()
    known = _handles(runtime).get((entry.adapter, job_id))
    if known is not None:
        await known.refresh()
        return known
    _maker(runtime.adapters.consult(runtime.registry.adapter_of(entry)), named)
    stored = await stored_job(runtime, entry.adapter, job_id)
    terms = VideoTerms(
        stored.seconds if asked.seconds is None else asked.seconds,
        stored.size if asked.size is None else asked.size,
        stored.audio if asked.audio is None else asked.audio,
    )
    decision = RoutingDecision(
        requested=model, model=named.model, provider=entry.adapter, resolved_by=named.resolved_by, candidates=()
    )
    origin = JobOrigin(
        decision=decision,
        wire_model=entry.wire_name,
        created_by=stored.created_by,
        priced_as=published_name(runtime.registry.adapter_of(entry), entry),
        polling=polling,
    )
    job = VideoJob(
        id=job_id,
        model=f"{entry.adapter}:{entry.wire_name}",
        provider=entry.adapter,
        status="queued",
        terms=terms,
    )
    handle = _known(runtime, VideoHandle(runtime, job, origin))
    await handle.refresh()
    return handle


_HANDLES: WeakKeyDictionary[Runtime, WeakValueDictionary[tuple[str, str], VideoHandle]] = WeakKeyDictionary()


def _handles(runtime: Runtime) -> WeakValueDictionary[tuple[str, str], VideoHandle]:
    """The handles that somebody holds, by provider and job."""
    return _HANDLES.setdefault(runtime, WeakValueDictionary())


def _known(runtime: Runtime, handle: VideoHandle) -> VideoHandle:
    """The one handle of a job in this engine, so that its end is told once."""
    return _handles(runtime).setdefault((handle.job.provider, handle.id), handle)


def _maker(adapter: ProviderAdapter, named: Named) -> VideoAdapter:
    if not isinstance(adapter, VideoAdapter):
        raise CapabilityError(f"{named.model} can't make videos: its adapter has none")
    return adapter

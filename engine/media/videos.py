"""Videos. One call creates a job; the end of the job is a call of its own, once it is known.

So a running job leaves nothing open in the trace, whatever becomes of this process. Whoever sees the end first
counts the cost; whoever comes later finds it counted.
"""

from __future__ import annotations

from weakref import WeakKeyDictionary, WeakValueDictionary

from callboard.adapters import AttemptObserver, CapabilityError, TokenUsage
from callboard.adapters.contract import ProviderAdapter
from callboard.adapters.operations.media_wire import check_video, video_usage
from callboard.adapters.videos import PollPolicy, VideoAdapter, VideoJob, VideoRequest, VideoTerms
from callboard.bus import JobCreated, RoutingDecision

from ..calls.plain_call import CallOptions, Models, PlainCalls, require_known
from ..models.published_prices import published_name
from ..routing.candidates import Named, Route, expand
from ..runtime.runtime import Runtime
from .inputs import ImageInput, image_block
from .job_call import JobAsReply, JobOrigin, stored_job
from .video_handle import VideoHandle

GRACE_SECONDS = 10.0
"""Seconds for which a cancelled creation still waits for the job's id, so that the job isn't lost."""


class VideoOptions(CallOptions, total=False):
    """The options of a video. What the model hasn't got is a CapabilityError before anything is sent.

    A fallback is tried only if the model before it surely made nothing. Retries and the time limit are those of
    the job's creation.
    """

    seconds: int | None
    """The length in seconds."""
    size: str | None
    """The size as ``WIDTHxHEIGHT``."""
    first_frame: ImageInput | None
    """An image to begin with."""
    audio: bool | None
    """Whether the video has sound."""
    polling: PollPolicy
    """The policy for looking at the job."""


async def create_video(runtime: Runtime, prompt: str, model: Models, options: VideoOptions) -> VideoHandle:
    """See `MediaMethods.create_video`."""
    options = require_known(options, VideoOptions)
    calls = PlainCalls("video_create", runtime, model, options, _maker, lambda: (prompt,))
    first_frame = options.get("first_frame")
    frame = None if first_frame is None else image_block(first_frame)

    def request_to(named: Named, request_id: str) -> VideoRequest:
        return VideoRequest(
            model=f"{named.entry.adapter}:{named.entry.wire_name}",
            prompt=prompt,
            seconds=options.get("seconds"),
            size=options.get("size"),
            first_frame=frame,
            audio=options.get("audio"),
            **calls.basics(named.entry, request_id),
        )

    def check(adapter: VideoAdapter, named: Named) -> None:
        check_video(request_to(named, ""), adapter.get_video_capabilities(named.entry.wire_name))

    async def call(route: Route, request_id: str, caused_by: str | None) -> VideoHandle:
        named = route.option.named
        request = request_to(named, request_id)
        origin = JobOrigin(
            decision=route.decision,
            wire_model=named.entry.wire_name,
            created_by=request_id,
            priced_as=published_name(runtime.registry.adapter_of(named.entry), named.entry),
            tags=dict(options.get("tags", {})) or None,
            polling=options.get("polling", PollPolicy()),
        )

        async def work(adapter: VideoAdapter, on_attempt: AttemptObserver) -> JobAsReply:
            job = await adapter.create_video(request, on_attempt=on_attempt)
            return JobAsReply(job, TokenUsage())  # what it costs is known when it is over

        def publish(created: JobAsReply) -> None:
            runtime.bus.publish(_created(created.job, route), request_id=request_id, tags=origin.tags)

        terms = VideoTerms(request.seconds, request.size, request.audio)
        created, _ = await calls.ask(
            route, request_id, caused_by, work, most=[video_usage(terms)], grace=GRACE_SECONDS, on_answer=publish
        )
        return _known(runtime, VideoHandle(runtime, created.job, origin))

    return await calls.run(lambda: calls.first_that_works(check, call))


def _created(job: VideoJob, route: Route) -> JobCreated:
    return JobCreated(
        job_id=job.id,
        kind="video",
        provider=job.provider,
        model=route.decision.model,
        status=job.status,
        seconds=job.terms.seconds,
        size=job.terms.size,
        audio=job.terms.audio,
        key=job.terms.key,
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
        asked.key or stored.key,
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
    """The handles that are in use, by provider and job."""
    return _HANDLES.setdefault(runtime, WeakValueDictionary())


def _known(runtime: Runtime, handle: VideoHandle) -> VideoHandle:
    """The one handle of a job in this engine, so that the job's end is published once."""
    return _handles(runtime).setdefault((handle.job.provider, handle.id), handle)


def _maker(adapter: ProviderAdapter, named: Named) -> VideoAdapter:
    if not isinstance(adapter, VideoAdapter):
        raise CapabilityError(f"{named.model} can't make videos: its adapter has none")
    return adapter

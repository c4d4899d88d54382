"""The wire of a provider's videos: how requests are written and jobs are read, and checks. All is pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from callboard.adapters.http.wire_call import WireCall
from callboard.adapters.requests.media import media_type_of
from callboard.bus.errors import CapabilityError, InvalidRequestError

from .contract import VideoCapabilities, VideoJob, VideoRequest, VideoTerms, VideoVariant


class VideoWire(Protocol):
    """One provider's way to write requests for videos, and to read what it says of a job."""

    def capabilities(self, model: str) -> VideoCapabilities:
        """What a model can make, by its name on the wire. Raises CapabilityError if that is nothing."""
        ...

    def create(self, request: VideoRequest, provider: str) -> WireCall:
        """The request for a job. `check` has let pass what it asks for."""
        ...

    def retrieve(self, job_id: str) -> WireCall:
        """The question how a job stands."""
        ...

    def read(self, body: bytes, provider: str, model: str, terms: VideoTerms) -> VideoJob:
        """The job. Raises msgspec's decoding errors.

        Args:
            body: The reply.
            provider: The adapter's name.
            model: The model's name on the wire, where the reply says none.
            terms: What is known of the job, where the reply says less.
        """
        ...

    def content(self, job: VideoJob, variant: VideoVariant) -> str:
        """Where a variant is downloaded: a path below the base URL, or an address. Raises CapabilityError."""
        ...

    def delete(self, job_id: str) -> WireCall | None:
        """The request to delete a job; None if there is no way."""
        ...

    def latest(self) -> WireCall | None:
        """The question for the latest jobs; None if the provider doesn't list them."""
        ...

    def read_latest(self, body: bytes, provider: str, request: VideoRequest) -> Sequence[VideoJob]:
        """The latest jobs that make what a request asks for."""
        ...


def check(request: VideoRequest, can: VideoCapabilities) -> None:
    """Require that the model can make the video. Each video costs money, so nothing is left out of a request.

    Raises:
        CapabilityError: The model can't make it.
    """
    model = request.wire_model
    if not request.prompt.strip():
        raise InvalidRequestError("there is no prompt to make a video of")
    if request.seconds is not None and can.seconds is not None and request.seconds not in can.seconds:
        offer = ", ".join(map(str, can.seconds))
        raise CapabilityError(f"{model} makes no videos of {request.seconds} s: it offers {offer}")
    if request.size is not None and can.sizes is not None and request.size not in can.sizes:
        raise CapabilityError(f"{model} has no size {request.size!r}: it offers {', '.join(can.sizes)}")
    if can.max_prompt_characters is not None and len(request.prompt) > can.max_prompt_characters:
        raise CapabilityError(f"{model} reads {can.max_prompt_characters} characters of a prompt")
    match can.audio, request.audio:
        case "always", False:
            raise CapabilityError(f"{model} makes no videos without sound")
        case "never", True:
            raise CapabilityError(f"{model} makes no sound")
        case _:
            pass
    if request.first_frame is not None:
        if not can.first_frame:
            raise CapabilityError(f"{model} takes no first frame")
        media_type = media_type_of(request.first_frame)
        if can.first_frame_media_types is not None and media_type not in can.first_frame_media_types:
            offer = ", ".join(can.first_frame_media_types)
            raise CapabilityError(f"{model} takes no first frame of {media_type or 'that kind'}: it takes {offer}")


def known_terms(terms: VideoTerms, can: VideoCapabilities) -> VideoTerms:
    """What a job makes, with the model's own way where nothing was asked for."""
    audio = {"always": True, "never": False}.get(can.audio, terms.audio)
    seconds = can.default_seconds if terms.seconds is None else terms.seconds
    return msgspec.structs.replace(terms, seconds=seconds, audio=None if can.audio == "never" else audio)

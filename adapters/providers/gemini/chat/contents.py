"""A fitted history as the contents of a generateContent request. Pure.

The history is fitted by `adapters.requests.history` first. What remain are this wire's own rules:

* Contents are `user` or `model`; the last is the user's.
* All results of a model's calls stand in one content, as many as there were calls, and nothing else stands in it.
* A signature goes back in the part that it came in. A newer model wants one on the first call of each of its
  turns; where that call was another's, or another model's, a fixed one says that there is none.
* A result is an object, and media in it are for newer models only; for others they follow it.
* Visible thoughts are a summary for people. Only signed ones go back.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Iterator
from itertools import cycle

from callboard.adapters.contract import CallWarning
from callboard.adapters.requests.fitted import FittedHistory, Loss, left_out
from callboard.adapters.requests.history import FAILED_SILENTLY
from callboard.bus.errors import InvalidRequestError
from callboard.bus.values.content import (
    AudioBlock,
    ContentBlock,
    DocumentBlock,
    ImageBlock,
    OpaqueBlock,
    ProviderRaw,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from callboard.bus.values.json import Json, JsonObject
from callboard.bus.values.messages import Role
from callboard.bus.values.warning_codes import WarningCode

from ..data import Model
from ..media import NEITHER, Media, sent_medium
from .parts import OF_A_PART, OF_TEXT, REPLY_KINDS, SIGNATURE_KIND

NO_SIGNATURE = b64encode(b"skip_thought_signature_validator").decode()
"""Stands for the signature of a call that Gemini did not make."""

_IN_RESULTS = frozenset({"image/png", "image/jpeg", "image/webp", "application/pdf", "text/plain"})
"""What a result of a newer model may hold; other media follow it."""

GO_ON = "Go on."
"""What the user says where the last word was the model's; an empty part is refused by some models."""


def write_contents(
    history: FittedHistory, model: str, row: Model
) -> tuple[list[JsonObject], list[Loss], list[CallWarning]]:
    """The contents of a history.

    Args:
        history: The fitted history.
        model: The model, as the wire names it.
        row: The model's row in the table.

    Returns:
        The contents, the losses, and warnings of additions.

    Raises:
        InvalidRequestError: There is nothing to send.
    """
    writer = _Writer(history, model, row)
    return writer.write(), writer.losses, writer.warnings


class _Writer:
    def __init__(self, history: FittedHistory, model: str, row: Model) -> None:
        self.history = history
        self.provider = history.adapter
        self.model = model
        self.row = row
        self.losses: list[Loss] = []
        self.warnings: list[CallWarning] = []
        speakers = cycle(("user", "model"))
        self.contents: list[JsonObject] = [
            {"role": role, "parts": [{"text": text}]} for role, text in zip(speakers, history.plain, strict=False)
        ]
        self._may_join = len(self.contents) % 2 == 1  # whether the last content takes more of the user's parts

    def write(self) -> list[JsonObject]:
        for message in self.history.messages[len(self.contents) :]:
            text = message.plain_text
            match message.role:
                case Role.ASSISTANT if text is not None:
                    self.contents.append({"role": "model", "parts": [{"text": text}]})
                    self._may_join = False
                case Role.USER if text is not None:
                    self._add("user", [{"text": text}])
                case Role.ASSISTANT:
                    self._add("model", self._model_turn(message.content))
                case Role.TOOL:
                    self._results([block for block in message.content if isinstance(block, ToolResultBlock)])
                case _:
                    parts: list[Json] = [part for block in message.content for part in self._said(block)]
                    self._add("user", parts or [{"text": block.text} for block in left_out(message.content)])
        if not self.contents:
            raise InvalidRequestError(f"{self.provider}: the request has no message to send")
        if self.contents[-1]["role"] == "model":
            self.contents.append({"role": "user", "parts": [{"text": GO_ON}]})
            why = f"{self.provider}: a conversation must end with the user; {GO_ON!r} was added"
            self.warnings.append(CallWarning(WarningCode.TURN_ADDED, why))
        return self.contents

    def _add(self, role: str, parts: list[Json], *, alone: bool = False) -> None:
        if not parts:
            return
        last = self.contents[-1] if self.contents else None
        if last is not None and role == "user" and self._may_join and not alone:
            joined = last["parts"]
            assert isinstance(joined, list)
            joined += parts
            return
        self.contents.append({"role": role, "parts": parts})
        self._may_join = role == "user" and not alone

    # -- the user

    def _said(self, block: ContentBlock) -> Iterator[JsonObject]:
        match block:
            case TextBlock():
                yield {"text": block.text, **self._fields(block.provider_raw, OF_A_PART)}
            case ImageBlock() | AudioBlock() | DocumentBlock():
                yield from self._media(block, block)
            case OpaqueBlock():
                yield block.provider_raw.data
            case _:
                self._lose(block, "this protocol has no such part")

    def _media(self, media: Media, home: ContentBlock) -> Iterator[JsonObject]:
        """A part of bytes or of an address.

        Args:
            media: The medium.
            home: The block of the message that the medium is in.
        """
        sent = sent_medium(media)
        if sent is None:
            self._lose(home, NEITHER)
            return
        of_type: JsonObject = {} if sent.media_type is None else {"mimeType": sent.media_type}
        own = self._fields(media.provider_raw, OF_A_PART)
        if sent.url is not None:
            yield {"fileData": {**of_type, "fileUri": sent.url}, **own}
        else:
            yield {"inlineData": {**of_type, "data": sent.data}, **own}

    def _fields(self, raw: ProviderRaw | None, names: Iterable[str]) -> JsonObject:
        """Of the fields that a block has for this provider, those that a request takes there."""
        own = self.history.own(raw)
        return {name: own[name] for name in names if own.get(name) is not None} if own else {}

    # -- the model

    def _model_turn(self, content: tuple[ContentBlock, ...]) -> list[Json]:
        parts: list[Json] = []
        signed = False
        for block in content:
            match block:
                case TextBlock():
                    parts += self._text(block)
                case ToolUseBlock():
                    part = self._call(block)
                    if self.row.modern and not signed:
                        part.setdefault("thoughtSignature", NO_SIGNATURE)
                    signed = True
                    parts.append(part)
                case ThinkingBlock(signature=None) | ThinkingBlock(signature=""):
                    self._lose(block, "it has no signature")
                case ThinkingBlock():
                    parts.append(self._thought(block))
                case ImageBlock(data=bytes()):
                    parts.append(self._own_image(block))
                case OpaqueBlock() if block.kind in REPLY_KINDS:
                    pass  # about the reply, and no part of it
                case OpaqueBlock():
                    parts += self._opaque(block)
                case _:
                    self._lose(block, "this protocol has no such part")
        return parts

    def _thought(self, block: ThinkingBlock) -> JsonObject:
        start = self._own(block).get("start")
        said = block.text[start:] if isinstance(start, int) else block.text
        own = self._fields(block.provider_raw, OF_TEXT)
        return {"text": said, "thought": True, "thoughtSignature": block.signature, **own}

    def _own(self, block: TextBlock | ToolUseBlock | ThinkingBlock) -> JsonObject:
        """What the target attached to a block. What another model signed is no more to it than what nobody did."""
        raw = block.provider_raw
        return self.history.own(raw) if raw is not None and self._is_ours(raw) else {}

    def _is_ours(self, raw: ProviderRaw) -> bool:
        return raw.model is None or raw.model == self.model

    def _opaque(self, block: OpaqueBlock) -> Iterator[JsonObject]:
        part = block.provider_raw.data
        if not self._is_ours(block.provider_raw):
            part = {name: value for name, value in part.items() if name != "thoughtSignature"}
            if block.kind == SIGNATURE_KIND:
                return
        yield part

    def _own_image(self, block: ImageBlock) -> JsonObject:
        """The part in which the model's own image came."""
        assert block.data is not None
        assert block.provider_raw is not None
        about = block.provider_raw.data.get("inlineData")
        data: JsonObject = {"mimeType": block.media_type, **(about if isinstance(about, dict) else {})}
        data["data"] = b64encode(block.data).decode()
        part = self._fields(block.provider_raw, ("thought", "thoughtSignature", *OF_A_PART))
        return {**part, "inlineData": data}

    def _text(self, block: TextBlock) -> Iterator[JsonObject]:
        """The parts that a text came in, as far as their signatures tell them apart."""
        at = 0
        own = self._fields(block.provider_raw, OF_TEXT)
        signed = self._own(block).get("signatures")
        for piece in signed if isinstance(signed, list) else ():
            match piece:
                case {"start": int(start), "end": int(end), "signature": str(signature)}:
                    if not at <= start <= end <= len(block.text):
                        break  # the text is no longer what was signed
                    if start > at:
                        yield {"text": block.text[at:start], **own}
                    yield {"text": block.text[start:end], "thoughtSignature": signature, **own}
                    at = end
        if at < len(block.text):
            yield {"text": block.text[at:], **own}

    def _call(self, block: ToolUseBlock) -> JsonObject:
        call: JsonObject = {"id": self.history.tool_ids[block.id], "name": block.name, "args": block.input}
        signature = self._own(block).get("thoughtSignature")
        own = self._fields(block.provider_raw, OF_TEXT)
        return {"functionCall": call, **({"thoughtSignature": signature} if signature else {}), **own}

    # -- the tools

    def _results(self, results: list[ToolResultBlock]) -> None:
        parts: list[Json] = []
        after: list[Json] = []
        for block in results:
            name = self.history.tool_names[block.tool_use_id]
            said: JsonObject = (
                {"error": block.text or FAILED_SILENTLY} if block.is_error else {"output": block.text}
            )
            response: JsonObject = {"id": self.history.tool_ids[block.tool_use_id], "name": name, "response": said}
            response |= self._fields(block.provider_raw, ("scheduling", "willContinue"))
            media = list(self._result_media(block))
            within: list[Json] = [part for part in media if self.row.modern and _fits_result(part)]
            if within:
                response["parts"] = within
            parts.append({"functionResponse": response})
            behind = [part for part in media if part not in within]
            if behind:
                after += [{"text": f"In the result of {name}:"}, *behind]
        self._add("user", parts, alone=True)
        self._add("user", after)

    def _result_media(self, block: ToolResultBlock) -> Iterator[JsonObject]:
        for part in () if isinstance(block.content, str) else block.content:
            if isinstance(part, ImageBlock | DocumentBlock):
                yield from self._media(part, block)
            elif isinstance(part, OpaqueBlock):
                yield part.provider_raw.data

    def _lose(self, block: ContentBlock, reason: str) -> None:
        self.losses.append(self.history.loss(block, reason))


def _fits_result(part: JsonObject) -> bool:
    data = part.get("inlineData")
    return isinstance(data, dict) and data["mimeType"] in _IN_RESULTS

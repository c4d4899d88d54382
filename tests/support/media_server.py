"""A server of images and videos on 127.0.0.1 that fails on demand, request by request. It runs in its own threads.

It speaks OpenAI's images and videos and Google's operations, and records everything that it has made, because the
caller must pay for it.
"""

from __future__ import annotations

import json
import socket
import struct
import threading
import zlib
from base64 import b64encode
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from hashlib import md5
from http.server import BaseHTTPRequestHandler
from typing import NamedTuple
from urllib.parse import parse_qs, urlsplit

from callboard.bus.values.base import JsonObject

from .provider_server import in_threads


def png(width: int = 2, height: int = 1) -> bytes:
    """A PNG of one colour."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    rows = b"".join(b"\x00" + b"\xff\x00\x00" * width for _ in range(height))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


@cache
def mp4(size: int = 100_000) -> bytes:
    """A file with the boxes of an MP4."""

    def box(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I4s", 8 + len(data), kind) + data

    begin = box(b"ftyp", b"isom" + bytes(8)) + box(b"moov", bytes(64))
    return begin + box(b"mdat", bytes(n * 7 % 251 for n in range(size)))


class Asked(NamedTuple):
    """One request."""

    what: str
    """The operation."""
    method: str
    path: str
    headers: dict[str, str]
    """The headers, with lower-case names."""
    body: bytes


class MediaServer:
    """The server of `media_server`. Its faults are these; the last six apply to downloads.

    drop            it closes the connection at once
    lost            it carries out the request, and closes the connection without an answer
    500, 503, 404   it does nothing, and answers with this or another status
    done-500        it carries out the request, and answers 500
    garbage         it carries out the request, and answers with invalid JSON
    cut-N           it sends N bytes, and closes the connection
    whole           it ignores the range
    endless         it sends no length
    endless-cut-N   both
    changed         the file has changed
    wrong           one byte of the file is wrong
    """

    def __init__(self) -> None:
        self.url = ""
        """The server's address."""
        self.asked: list[Asked] = []
        """Every request."""
        self.faults: dict[str, list[str]] = {}
        """The faults by operation (create, look, list, delete, content, file, image), one for each request to
        come, in order; "" is none."""
        self.steps = [10, 60]
        """The progress in percent at each poll of a job."""
        self.ends = "completed"
        """The state after the steps: completed or failed."""
        self.made: Counter[str] = Counter()
        """The number of jobs and images that were made and are billed."""
        self.file = mp4()
        self.etag = '"one"'
        self.checksum = False
        """Whether a download has a checksum."""
        self.files_at = ""
        """The address of another server with Google's files."""
        self.jobs: dict[str, JsonObject] = {}
        self.lock = threading.Lock()
        self.hold = threading.Event()
        """While it is cleared, requests are read and not answered."""
        self.hold.set()
        self.asked_for = threading.Event()
        """Set with the first request."""

    def of(self, what: str) -> list[Asked]:
        return [asked for asked in self.asked if asked.what == what]

    def fault(self, what: str) -> str:
        with self.lock:
            waiting = self.faults.get(what, [])
            return waiting.pop(0) if waiting else ""

    # -- what it does

    def create(self, body: bytes, headers: dict[str, str]) -> JsonObject:
        fields = _fields(body, headers)
        with self.lock:
            self.made["video"] += 1
            job: JsonObject = {
                "id": f"video_{self.made['video']}", "object": "video", "model": fields.get("model", "sora-2"),
                "prompt": fields.get("prompt"), "seconds": fields.get("seconds", "4"),
                "size": fields.get("size", "720x1280"), "status": "queued", "progress": 0,
                "created_at": 4_000_000_000, "looks": 0,
            }  # fmt: skip
            self.jobs[str(job["id"])] = job
        return shown(job)

    def look(self, job: JsonObject) -> JsonObject:
        with self.lock:
            looks = int(job["looks"])
            job["looks"] = looks + 1
            if looks < len(self.steps):
                job.update(status="in_progress", progress=self.steps[looks])
            elif self.ends == "completed":
                job.update(status="completed", progress=100, expires_at=4_000_003_600)
            else:
                error = {"code": "moderation_blocked", "message": "not that"}
                job.update(status="failed", error=error)
        return shown(job)


def shown(job: JsonObject) -> JsonObject:
    return {name: value for name, value in job.items() if name != "looks"}


def _fields(body: bytes, headers: dict[str, str]) -> JsonObject:
    """The fields of a JSON body or of a form."""
    kind = headers.get("content-type", "")
    if "multipart" not in kind:
        found: JsonObject = json.loads(body)
        return found
    boundary = kind.partition("boundary=")[2].encode()
    fields: JsonObject = {}
    for part in body.split(b"--" + boundary)[1:-1]:
        head, _, content = part.partition(b"\r\n\r\n")
        name = head.partition(b'name="')[2].partition(b'"')[0].decode()
        fields[name] = len(content) - 2 if b"filename=" in head else content[:-2].decode()
    return fields


@contextmanager
def media_server() -> Iterator[MediaServer]:
    """Run a server; see `MediaServer`."""
    server = MediaServer()

    class Handler(_Handler):
        media = server

    with in_threads(Handler) as server.url:
        yield server


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    media: MediaServer

    def do_GET(self) -> None:
        self._serve()

    def do_POST(self) -> None:
        self._serve()

    def do_DELETE(self) -> None:
        self._serve()

    def log_message(self, format: str, *arguments: object) -> None:
        pass

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        headers = {name.lower(): value for name, value in self.headers.items()}
        path = urlsplit(self.path).path
        what = _operation(self.command, path)
        self.media.asked.append(Asked(what, self.command, self.path, headers, body))
        self.media.asked_for.set()
        self.media.hold.wait(30)
        fault = self.media.fault(what)
        if fault == "drop":
            return self._hang_up()
        if fault.isdecimal():
            return self._json({"error": {"message": "out of order", "code": None}}, status=int(fault))
        if what in ("content", "file"):
            return self._content(fault, headers, path)
        answer = self._answer(what, path, body, headers)
        if fault == "lost":
            return self._hang_up()
        if fault.startswith("done-"):
            return self._json({"error": {"message": "out of order"}}, status=int(fault.removeprefix("done-")))
        if fault == "garbage":
            return self._send(200, b"<html>", {"content-type": "text/html"})
        if answer is None:
            return self._json({"error": {"message": "no such thing"}}, status=404)
        return self._json(answer)

    def _answer(self, what: str, path: str, body: bytes, headers: dict[str, str]) -> JsonObject | None:
        media = self.media
        match what:
            case "create":
                job = media.create(body if "Long" not in path else _google(body), headers)
                return job if "Long" not in path else {"name": f"models/veo/operations/{job['id']}"}
            case "list":
                jobs = list(media.jobs.values())
                return {"object": "list", "data": [shown(job) for job in reversed(jobs)]}
            case "image":
                media.made["image"] += 1
                return self._images(path, _fields(body, headers))
        found = media.jobs.get(path.rpartition("/")[2])
        if found is None:
            return None
        if what == "delete":
            del media.jobs[str(found["id"])]
            return {"id": found["id"], "object": "video.deleted", "deleted": True}
        job = media.look(found)
        return job if "operations" not in path else self._operation(job)

    def _operation(self, job: JsonObject) -> JsonObject:
        shape: JsonObject = {"name": f"models/veo/operations/{job['id']}"}
        match job["status"]:
            case "completed":
                uri = f"{self.media.files_at or self.media.url}/v1beta/files/{job['id']}:download?alt=media"
                videos = {"generatedSamples": [{"video": {"uri": uri}}]}
                return {**shape, "done": True, "response": {"generateVideoResponse": videos}}
            case "failed":
                return {**shape, "done": True, "error": {"code": 13, "message": "not that", "status": "INTERNAL"}}
            case _:
                return shape

    def _images(self, path: str, fields: JsonObject) -> JsonObject:
        image = b64encode(png()).decode()
        if "generateContent" in path:
            part = {"inlineData": {"mimeType": "image/png", "data": image}}
            usage = {
                "promptTokenCount": 6,
                "candidatesTokenCount": 1290,
                "candidatesTokensDetails": [{"modality": "IMAGE", "tokenCount": 1290}],
            }
            reply: JsonObject = {"candidates": [{"content": {"parts": [part]}, "finishReason": "STOP"}]}
            return {**reply, "usageMetadata": usage, "modelVersion": "gemini-2.5-flash-image"}
        usage = {
            "input_tokens": 20,
            "input_tokens_details": {"text_tokens": 12, "image_tokens": 8},
            "output_tokens": 272,
        }
        n = int(fields.get("n") or 1)
        return {"created": 1, "data": [{"b64_json": image}] * n, "usage": usage, "output_format": "png"}

    def _content(self, fault: str, headers: dict[str, str], path: str) -> None:
        media = self.media
        if path.endswith(":download"):  # Google's, which redirects to another server
            return self._send(302, b"", {"location": f"{media.url}/blob"})
        if fault == "changed":
            media.file, media.etag = media.file[:-1] + b"\x00", '"two"'
        whole = media.file
        variant = parse_qs(urlsplit(self.path).query).get("variant", ["video"])[0]
        if variant != "video":
            whole = png()
        more: dict[str, str] = {"content-type": "video/mp4" if variant == "video" else "image/png"}
        if media.etag:
            more["etag"] = media.etag
        if media.checksum:
            more["x-goog-hash"] = f"crc32c=AAAAAA==,md5={b64encode(md5(whole).digest()).decode()}"
        start, status = 0, 200
        asked = headers.get("range", "")
        if asked and fault != "whole" and headers.get("if-range", media.etag) == media.etag:
            start, status = int(asked.removeprefix("bytes=").partition("-")[0]), 206
            more["content-range"] = f"bytes {start}-{len(whole) - 1}/{len(whole)}"
        sent = whole[start:]
        if fault == "wrong":
            sent = sent[:-1] + bytes([sent[-1] ^ 1])
        cut = int(fault.rpartition("-")[2]) if "cut-" in fault else None
        return self._send(status, sent, more, cut=cut, length=not fault.startswith("endless"))

    def _json(self, value: JsonObject, *, status: int = 200) -> None:
        self._send(status, json.dumps(value).encode(), {"content-type": "application/json"})

    def _send(
        self, status: int, body: bytes, headers: dict[str, str], *, cut: int | None = None, length: bool = True
    ) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if length:
            self.send_header("content-length", str(len(body)))
        else:
            self.send_header("connection", "close")
        self.end_headers()
        self.wfile.write(body[:cut])
        self.wfile.flush()
        if cut is not None or not length:
            self._hang_up()

    def _hang_up(self) -> None:
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)


def _google(body: bytes) -> bytes:
    """Convert a request of Google's API to one of OpenAI's."""
    value = json.loads(body)
    seconds = value["parameters"].get("durationSeconds", 8)
    return json.dumps({"prompt": value["instances"][0]["prompt"], "seconds": str(seconds)}).encode()


def _operation(method: str, path: str) -> str:
    match method:
        case "DELETE":
            return "delete"
        case "GET" if path.endswith("/content") or path == "/blob":
            return "content"
        case "GET" if path.endswith(":download"):
            return "file"
        case "GET" if path.endswith("/videos"):
            return "list"
        case "GET":
            return "look"
        case _:
            return "create" if path.endswith(("/videos", "LongRunning")) else "image"

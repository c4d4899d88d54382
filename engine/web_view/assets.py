"""The files of the page: read once, and given by their names. No path of a request reaches the disk."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from .answers import Refused

FOLDER = Path(__file__).parent / "static"

_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
    ".json": "application/json",
}


class Asset(msgspec.Struct, frozen=True):
    """One file."""

    body: bytes
    """Its bytes."""
    media_type: str
    """Its type for browsers."""
    tag: str
    """Its entity tag, quoted."""


class Assets:
    """All files of the page, by their paths below its folder."""

    def __init__(self) -> None:
        self._files = {
            path.relative_to(FOLDER).as_posix(): _asset(path)
            for path in sorted(FOLDER.rglob("*"))
            if path.suffix in _TYPES
        }

    def __iter__(self) -> object:
        return iter(self._files)

    def give(self, request: Request, name: str) -> Response:
        """A file as an answer.

        Raises:
            Refused: There is no such file.
        """
        asset = self._files.get(name)
        if asset is None:
            raise Refused(404, "nothing here")
        headers = {"etag": asset.tag, "cache-control": "no-cache"}
        if request.headers.get("if-none-match") == asset.tag:
            return Response(status_code=304, headers=headers)
        return Response(asset.body, headers=headers, media_type=asset.media_type)


def _asset(path: Path) -> Asset:
    body = path.read_bytes()
    return Asset(body, _TYPES[path.suffix], f'"{hashlib.sha256(body).hexdigest()[:24]}"')

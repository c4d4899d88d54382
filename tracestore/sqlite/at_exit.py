"""The end of the interpreter, which stops open connections.

aiosqlite's thread is no daemon, so a connection that is left open would keep the process alive for ever. One
daemon thread per process waits for the main thread to end, and for those of the host's own threads that the
interpreter waits for. Then it stops the connections that they left open.
"""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import aiosqlite

_open_connections: weakref.WeakKeyDictionary[aiosqlite.Connection, threading.Thread] = weakref.WeakKeyDictionary()
_reaper: threading.Thread | None = None
_reaper_lock = threading.Lock()


def stop_at_exit(connection: aiosqlite.Connection) -> None:
    """Stop a connection that is still open when the interpreter ends. It belongs to the thread that calls this."""
    global _reaper
    with _reaper_lock:
        _open_connections[connection] = threading.current_thread()
        if _reaper is None or not _reaper.is_alive():
            _reaper = threading.Thread(target=_reap, name="callboard-sqlite-reaper", daemon=True)
            _reaper.start()


def _reap() -> None:
    global _reaper
    threading.main_thread().join()
    while True:
        with _reaper_lock:
            left = [
                (_outlives_main(owner), id(connection), connection, owner)
                for connection, owner in _open_connections.items()
            ]
            if not left:
                _reaper = None
                return
        # A host's own, non-daemon thread may still be shutting its engine down; the interpreter waits for it too.
        # What belonged to the main thread has nobody left, and goes first.
        for wait, _, connection, owner in sorted(left):
            if wait:
                owner.join()
            connection.stop()
            with _reaper_lock:
                _open_connections.pop(connection, None)


def _outlives_main(owner: threading.Thread) -> bool:
    return not owner.daemon and owner is not threading.main_thread()

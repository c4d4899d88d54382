"""A message that is written in the person's own editor."""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
from pathlib import Path

from callboard.bus import CallboardError


def edited(text: str = "") -> str:
    """What the person has written in ``$VISUAL`` or ``$EDITOR``.

    Args:
        text: The text to begin with.

    Raises:
        CallboardError: There is no such editor, or it failed.
    """
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    with tempfile.TemporaryDirectory(prefix="callboard-") as folder:  # which is the person's own
        file = Path(folder, "message.md")
        file.write_text(text, encoding="utf-8")
        try:
            code = subprocess.run([*shlex.split(editor), str(file)], check=False).returncode
            written = file.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise CallboardError(f"{editor}: {error}; $EDITOR names another editor") from error
    if code:
        raise CallboardError(f"{editor} ended with {code}; nothing was sent")
    return written.strip()

"""A small assistant for a folder: it lists and reads files, and asks before it writes one.

    python examples/tools.py anthropic:claude-sonnet-4-6 "What is in this folder?"

It works in the current folder and on any model that can call tools.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Annotated

from callboard import (
    Approved,
    Denied,
    Engine,
    TextDelta,
    ToolAnnotations,
    ToolContext,
    ToolError,
    ToolProgress,
    tool,
)


class Folder:
    """Tools may be methods. These stay inside one folder."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()

    def _inside(self, path: str) -> Path:
        found = (self.root / path).resolve()
        if not found.is_relative_to(self.root):
            raise ToolError("That path is outside the folder.")
        return found

    @tool(annotations=ToolAnnotations(read_only=True))
    def list_files(self, pattern: Annotated[str, "Such as '*.py'."] = "*") -> list[str]:
        """List the files whose names match a pattern."""
        return sorted(str(path.relative_to(self.root)) for path in self.root.glob(pattern))

    @tool(annotations=ToolAnnotations(read_only=True))
    def read_file(self, path: str, context: ToolContext) -> str:
        """Read a text file."""
        context.progress(f"reading {path}")
        return self._inside(path).read_text()

    @tool(annotations=ToolAnnotations(destructive=True), needs_approval=True)
    def write_file(self, path: str, text: str) -> str:
        """Write a text file. An existing file is replaced.

        Args:
            path: Relative to the folder.
            text: All of the new content.
        """
        self._inside(path).write_text(text)
        return "written"


async def assist(engine: Engine, model: str, folder: Folder, question: str, *, may_write: bool) -> None:
    """One question and its answer, printed.

    Args:
        engine: The engine.
        model: The model that answers.
        folder: The folder whose tools the model has.
        question: The question.
        may_write: The answer to a call that needs approval.
    """
    session = engine.session(model, tools=[folder.list_files, folder.read_file, folder.write_file])
    stream = session.stream(question, max_tool_rounds=8)
    while True:
        async with stream as turn:
            async for event in turn:
                match event:
                    case TextDelta(text=text):
                        print(text, end="", flush=True)
                    case ToolProgress(message=message):
                        print(f"[{message}]")
                    case _:
                        pass
        if not session.pending_calls:
            break
        answers = {}
        for call in session.pending_calls:
            print(f"[{call.name} {call.input.get('path')}: {'yes' if may_write else 'no'}]")
            answers[call.id] = Approved() if may_write else Denied("the user said no")
        stream = session.submit_stream(answers, max_tool_rounds=8)
    print()


async def main(model: str, question: str, *, may_write: bool) -> None:
    async with Engine() as engine:
        await assist(engine, model, Folder(Path.cwd()), question, may_write=may_write)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    leave = input("May it write files here? [y/N] ").lower() == "y"
    asyncio.run(main(sys.argv[1], sys.argv[2], may_write=leave))

"""Run a page's Python blocks in another process, for `test_snippets`. The output of each block goes to a file.

Each block is a separate program. It must make or import each name that it uses.

    python -m tests.book.page_runner PAGE RESULT

The result also lists functions that the page defines and never calls, because they are untested.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import sys
from pathlib import Path
from types import CodeType

from tests.book.snippets import Block, blocks


class _Noting(ast.NodeTransformer):
    """Make each top-level function of a page record that it was called."""

    def __init__(self, called: str) -> None:
        self._called = called
        self.defined: set[str] = set()

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return self._noting(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        return self._noting(node)

    def _noting(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.AST:
        self.defined.add(node.name)
        note = ast.parse(f"{self._called}.add({node.name!r})").body
        for statement in note:
            ast.increment_lineno(statement, node.lineno - 1)
        place = 1 if ast.get_docstring(node, clean=False) is not None else 0
        node.body[place:place] = note
        return node


def run_page(page: Path) -> dict[str, object]:
    """Run the blocks of a page. An exception of a block is raised here.

    Returns:
        `printed`: The output of each block, by the block's line.
        `uncalled`: The names of the functions that were not called.
    """
    called: set[str] = set()
    noting = _Noting("_called_")
    printed: dict[int, str] = {}
    for block in blocks(page):
        if block.language == "python" and block.title is None and block.not_run is None:
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                exec(_compiled(page, block, noting), {"__name__": "__main__", "_called_": called})
            printed[block.line] = out.getvalue()
    return {"printed": printed, "uncalled": sorted(noting.defined - called)}


def _compiled(page: Path, block: Block, noting: _Noting) -> CodeType:
    """Compile a block with the page's line numbers, for tracebacks."""
    tree = ast.parse("\n" * (block.line - 1) + block.code, str(page))
    code: CodeType = compile(ast.fix_missing_locations(noting.visit(tree)), str(page), "exec")
    return code


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(json.dumps(run_page(Path(sys.argv[1]))))

"""A scripted model for tests, and for machines without a model."""

from __future__ import annotations

from callboard import (
    CanonicalRequest,
    OverloadedError,
    ScriptedAdapter,
    ScriptedCall,
    ScriptedReply,
    ToolResultBlock,
)


class Understudy(ScriptedAdapter):
    """It looks up orders, refunds them, asks researchers, breaks off, or repeats the user's text.

    As a researcher it reads the file of its subject.
    """

    def __init__(self) -> None:
        super().__init__(name="understudy", replies=answer)


def answer(request: CanonicalRequest) -> ScriptedReply:
    """The reply to the last message."""
    last = request.messages[-1]
    if results := [block.text for block in last.content if isinstance(block, ToolResultBlock)]:
        return ScriptedReply(f"Done: {' '.join(results)}")
    text = last.text
    if text.startswith("Tell me about the "):
        return ScriptedReply(calls=(ScriptedCall("read_file", {"name": f"{text.split()[4]}.txt"}),))
    if "compare" in text.lower():
        tasks = {subject: f"Tell me about the {subject} of cellos." for subject in ("prices", "reviews")}
        return ScriptedReply(
            calls=tuple(ScriptedCall(f"research_{name}", {"task": tasks[name]}) for name in tasks)
        )
    if "refund" in text.lower():
        return ScriptedReply(calls=(ScriptedCall("refund", {"order": "A-17", "cents": 1250}),))
    if "break off" in text.lower():
        return ScriptedReply(("I was about to ",), raises=OverloadedError("the understudy has lost the thread"))
    if "order" in text.lower():
        return ScriptedReply(calls=(ScriptedCall("find_order", {"number": "A-17"}),))
    return ScriptedReply(tuple(f"{word} " for word in ("You", "said:", *text.split())), pace=0.05)

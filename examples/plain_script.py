"""A plain script without an event loop: a streamed reply, and a whole one.

python examples/plain_script.py [MODEL]
"""

from __future__ import annotations

import sys

from callboard import generate_sync, stream_sync


def main(model: str = "local-chat") -> None:
    with stream_sync(model, "Name three colours.", max_output_tokens=40) as result:
        for text in result.text_stream:
            print(text, end="", flush=True)
    print(f"\n{result.response().usage.output_tokens} tokens")
    answer = generate_sync(
        model, "Name a fruit.", system_prompt="You are brief.", max_output_tokens=20, timeout=60
    )
    cost = answer.total_cost.usd
    print(answer.text, "unpriced" if cost is None else f"${cost:.6f}")


if __name__ == "__main__":
    main(*sys.argv[1:])

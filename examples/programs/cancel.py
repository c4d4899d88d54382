# Cancel a reply early, and print its cost.
from callboard import stream_sync

with stream_sync("anthropic:claude-haiku-4-5", "Write a novel.") as novel:
    print(next(novel.text_stream))
print(novel.status, novel.usage.output_tokens, novel.cost.usd)

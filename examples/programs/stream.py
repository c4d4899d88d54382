# A streamed answer.
from callboard import stream_sync

for text in stream_sync("anthropic:claude-haiku-4-5", "Tell a story.").text_stream:
    print(text, end="", flush=True)

# Another provider when the first one is overloaded (529).
from callboard import generate_sync

reply = generate_sync("anthropic:claude-opus-4-6", "Name a fruit.", fallback=["openai:gpt-5.2"], max_retries=0)
print(reply.model, reply.text)

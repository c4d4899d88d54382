# One question, one answer.
from callboard import generate_sync

print(generate_sync("anthropic:claude-haiku-4-5", "Name a fruit.").text)

# One line for each call of the process, as it ends.
from callboard import generate_sync, watch_sync

with watch_sync().each(print):
    generate_sync("anthropic:claude-haiku-4-5", "Name a fruit.")

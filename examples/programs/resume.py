# A conversation that survives kill -9: run it again and again.
import sys

from callboard import Engine, run_sync

with Engine(capture_content=True) as engine:
    session = run_sync(engine.open_session("notes", model="anthropic:claude-haiku-4-5"))
    print(session.send_sync(sys.argv[1]).text, flush=True)

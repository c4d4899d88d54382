# A tool call that waits for an approval. Run the program again to answer, tomorrow or on another host.
from callboard import Engine, run_sync, tool


@tool(needs_approval=True)
def pay(euros: int) -> str:
    """Pay an amount."""
    return f"Paid {euros} euros."


with Engine(capture_content=True) as engine:
    session = run_sync(engine.open_session("bills", model="anthropic:claude-haiku-4-5", tools=[pay]))
    if not (calls := session.pending_calls):
        print(session.send_sync("Pay the bill of 30 euros.").status)
    elif input(f"{calls[0].name} {calls[0].input}? ") == "yes":
        print(run_sync(session.approve(*calls)).text)

# Switch providers in the middle of a conversation with tools and thinking.
from callboard import Engine


def weather(city: str) -> str:
    """Tell the weather in a city."""
    return f"Rain in {city}."


with Engine() as engine:
    session = engine.session("anthropic:claude-opus-4-5", tools=[weather])
    print(session.send_sync("Weather in Bonn?", reasoning_effort="high").text)
    print(session.send_sync("And in Oslo?", reasoning_effort="high", model="openai:gpt-5.2").text)

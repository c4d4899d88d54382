# A plain function as a tool. The calls of one reply run in parallel.
from callboard import generate_sync


def weather(city: str) -> str:
    """Tell the weather in a city."""
    return f"Rain in {city}."


print(generate_sync("anthropic:claude-haiku-4-5", "Weather in Bonn and in Oslo?", tools=[weather]).text)

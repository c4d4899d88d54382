# Data instead of text. A malformed reply is repaired, or the model is asked again.
from typing import TypedDict

from callboard import generate_object_sync


class City(TypedDict):
    name: str
    inhabitants: int


print(generate_object_sync("openai:gpt-5.2", "Bonn?", schema=City, repair=True, max_reasks=1).output)

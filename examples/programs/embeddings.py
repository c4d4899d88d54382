# A thousand vectors, with progress.
from callboard import embed_sync

texts = [f"Note {number}" for number in range(1000)]
result = embed_sync(texts, model="openai:text-embedding-3-small", batch_size=100, on_progress=print)
print(len(result.vectors), result.cost.usd)

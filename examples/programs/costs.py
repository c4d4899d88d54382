# The cost of the last hour by model, without an engine.
from callboard import costs_sync

for row in costs_sync(by="model", since="1h"):
    print(row["model"], row.calls, row.usd)

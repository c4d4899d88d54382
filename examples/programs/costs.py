# What the last hour cost, by model; no engine is started.
from callboard import costs_sync

for row in costs_sync(by="model", since="1h"):
    print(row["model"], row.calls, row.usd)

# The last month at Anthropic prices 20 % lower. Nothing stored changes.
from callboard import reprice_sync

report = reprice_sync(discount={"anthropic:*": "0.8"}, since="30d", dry_run=True)
print(report.before_usd, report.after_usd)

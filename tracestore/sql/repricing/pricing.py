"""`PriceTable.explain` as SQL, for a million calls at once. A property test compares the two.

Calls name their model in many ways. Each distinct way is resolved once, in Python, when it is first met. The
result are segments (ranges of time, hours and size with one price row each) in temporary tables. Then calls are
joined with segments. `reprice_cost` holds the nano-USD of each call, or the reason why it has no cost.

The statements stand in `price_statements`. `plain` prices almost every call, and `any` the calls that it leaves.
"""

from __future__ import annotations

from ...prices.rows import BUCKETS, DAY_SECONDS, MAX_INT64, US_PER_SECOND, PriceRow
from ...prices.table import PriceTable, Segment, tier_words
from ..connection import Row, Sql, Statements
from .price_statements import DAYS, INSERT_MODEL, INSERT_PLAIN, INSERT_RATE, INSERT_SEGMENT, price_statements
from .pricing_dialect import PricingDialect

_EVER = (-MAX_INT64, MAX_INT64, -1, MAX_INT64, 0, DAY_SECONDS * US_PER_SECOND)


class Pricer:
    """Prices calls under one table, some thousands at a time. Its temporary tables belong to one connection.

    Args:
        dialect: The SQL of the database.
        which: The condition of the calls to price, as `condition` gives it.
        as_model: A ``provider:name`` to price every call as; None prices each call as its own model.
        by_session: Whether to note the session of each call.
    """

    def __init__(
        self, table: PriceTable, dialect: PricingDialect, which: Sql, as_model: str | None, *, by_session: bool
    ) -> None:
        self._table = table
        condition, self._values = which
        self._sql = price_statements(dialect)
        self._unknown_rate = dialect.unknown_rate
        self._as_model = as_model
        self.by_session = by_session
        session = "coalesce(c.session_id, '')" if by_session else "NULL"
        self._plain = self._sql.plain.format(session=session, condition=condition)
        self._rows: list[PriceRow] = []  # of the segments, by their numbers
        self._details: list[str] = []
        self._models: list[tuple[str, str]] = []  # provider and model of each key

    def prepare(self, statements: Statements) -> None:
        """Make the temporary tables, or empty them."""
        for sql in self._sql.prepare:
            statements.run(sql)

    def price(self, statements: Statements, low: int, high: int) -> None:
        """Fill `reprice_cost` with the calls from `low`, exclusive, to `high`."""
        self._price_plain(statements, low, high)
        if not statements.run(self._sql.left):
            return
        if self._learn_models(statements):
            self._price_plain(statements, low, high)
        self._learn_details(statements)
        statements.run(self._sql.any)

    def model_and_day(self, place: int) -> tuple[str, str, int]:
        """Provider, model and day of a `reprice_cost.place`."""
        key, day = divmod(place + DAYS // 2, DAYS)
        return *self._models[key], day - DAYS // 2

    def _price_plain(self, statements: Statements, low: int, high: int) -> None:
        statements.run(self._sql.empty)
        statements.run(self._plain, [low, high, *self._values])

    def _learn_models(self, statements: Statements) -> bool:
        """Resolve the models that are met for the first time. Whether there are any."""
        found = statements.run(self._sql.new_models)
        for names in found:
            self._add_model(statements, names)
        for sql in self._sql.learned if found else ():
            statements.run(sql)
        return bool(found)

    def _add_model(self, statements: Statements, names: Row) -> None:
        provider, model, served, priced_as, tier = names
        key = len(self._models)
        self._models.append((provider, model))
        name = self._as_model or model
        statements.run(INSERT_MODEL, [key, *names, name, name + tier_words(tier)])
        served_as, published = (None, None) if self._as_model else (served or None, priced_as or None)
        for part in self._table.segments(name, served_as, published, tier or None):
            self._add_segment(statements, key, names, part)

    def _add_segment(self, statements: Statements, key: int, names: Row, part: Segment) -> None:
        provider, model, served, priced_as, tier = names
        number, row = len(self._rows), part.row
        self._rows.append(row)
        box = (part.since, part.until, part.above, part.up_to, part.daily_from, part.daily_to)
        rates = [row.rate(bucket) for bucket in BUCKETS]
        as_input = row.as_input("cache_read") + 2 * row.as_input("cache_write_5m")
        statements.run(INSERT_SEGMENT, [number, key, *box, *rates, row.per_request, as_input])
        known = [self._unknown_rate if rate is None else rate for rate in rates]
        rated = [*known, row.per_request, as_input]
        statements.run(
            INSERT_PLAIN,
            [
                served,
                model,
                number,
                provider,
                priced_as or None,
                tier or None,
                int(box == _EVER),
                key,
                *rated,
                *box,
            ],
        )
        self._add_rates(statements, number, self._details)

    def _learn_details(self, statements: Statements) -> None:
        """Look up the rates of details that are met for the first time."""
        new = sorted({str(name) for (name,) in statements.run(self._sql.detail_names)} - {*self._details})
        self._details += new
        for number in range(len(self._rows) if new else 0):
            self._add_rates(statements, number, new)

    def _add_rates(self, statements: Statements, segment: int, names: list[str]) -> None:
        row = self._rows[segment]
        rates = [
            (segment, name, rate, int(row.as_input(name)))
            for name in names
            if (rate := row.rate(name)) is not None
        ]
        statements.run_many(INSERT_RATE, rates)

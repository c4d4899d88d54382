"""The direct way of a shipment: straight into the tables, because all of it is new.

What lies behind the place up to which a file is here is new, unless the file is a copy of another one, or was sent
before under another name, or somebody has written the same events otherwise. Then a row of it would be there a
second time, which no table allows. The transaction is undone as a whole, and the shipment goes the other way, by
`staged`. So nothing is stored here that `staged` would not have stored in the same way.
"""

from __future__ import annotations

from ...shipping.shipment import START, Origin, Shipment
from ...sql.connection import Unstorable
from ...sql.projection import flat
from ..statements import Statements
from .content import ContentStoring
from .entries import Present, Stored, enter_mark, enter_runs, enter_sessions, numbered, was_sent


def store_new(statements: Statements, origin: Origin, shipment: Shipment, present: Present) -> Stored:
    """Store a shipment of which all is new.

    Args:
        statements: The connection, in a transaction.
        origin: The file.
        shipment: The shipment.
        present: What is here.

    Returns:
        What became of it.

    Raises:
        Unstorable: Something is not new, or no table takes it. The transaction is to be undone.
    """
    if (present.mark or START) != shipment.after or was_sent(statements, shipment):
        raise Unstorable("the shipment doesn't follow what is here")
    numbers = enter_runs(statements, origin, shipment)
    for table, lines in (("events", shipment.events), *(("calls", lines) for lines in shipment.begun)):
        statements.copy(table, ("run", *lines.columns), lines.options, lines.parts(numbers))
    for insert, rows, begin in shipment.projection.calls:
        if rows and not begin:
            statements.insert(insert, flat(numbered(rows, numbers)))
    enter_sessions(statements, shipment.sessions, shipment.projection, present.barrier)
    shipment.projection.write_behind_calls(statements)
    if shipment.content is not None:
        ContentStoring(statements, origin, shipment.content, None, present.barrier).store()
    return Stored(enter_mark(statements, origin, shipment, present.mark), all_new=True)

"""Trees of turns on several nodes: their children, costs, budgets and end.

`trace_context` passes a tool run to another node. There, a TreeNode represents the turn that runs the tool. The
two nodes exchange messages over the broker, each under its own subject:

    far node → home node   "busy" before the first call, which is answered; "child", "called", "spent", "idle"
    far node → home node   a request for money, if the tree has a limit on it
    home node → far node   "cancel": the turn or the tool run is over

The home node waits for "idle" before its turn ends, so a turn has the whole cost of its tree. Before a far call is
sent, the home node reserves the maximum cost of the call. When the far node is idle, the home node takes back the
unused money. While the broker is unreachable, no money is granted, and the turn's own sums do not include the
spending. The shared trace includes it.
"""

from __future__ import annotations

import itertools
import weakref
from typing import Literal

import anyio
import msgspec

from callboard.bus import Log
from callboard.bus.values.usage import CostSum, TokenUsage

from ..budgets.budget import OF_TREES, Budget, Payer
from ..budgets.budgets import Budgets
from ..budgets.ledger import Account, Amount, Refusal
from ..tree import Caller, ChildTurn
from .broker import Broker

_log = Log("engine.node")

GRANT_SECONDS = 3.0
"""Seconds to wait for the home node's answer to a request for money."""

_NOTHING = Amount()


class TreeMessage(msgspec.Struct, frozen=True, omit_defaults=True):
    """A message between the two nodes."""

    what: Literal["busy", "idle", "child", "called", "spent", "money", "cancel"]
    key: str
    """The id of the object that represents the turn on the far node."""
    sender: str = ""
    turn: str = ""
    tool: str = ""
    child: ChildTurn | None = None
    calls: int = 0
    cost: CostSum | None = None
    usage: TokenUsage | None = None
    amount: Amount = _NOTHING
    """The requested money. In ``idle``, the total spending."""


class Grant(msgspec.Struct, frozen=True):
    """The answer to a "busy" message or a request for money: whether the home node allows it."""

    granted: bool


class RemoteTrees:
    """Connects trees of turns on several nodes."""

    def __init__(self, node: str, cluster: str, broker: Broker) -> None:
        self.node = node
        self._subjects = f"callboard.{cluster}.trees."
        self._broker = broker
        self._runs: weakref.WeakValueDictionary[tuple[str, str], _Run] = weakref.WeakValueDictionary()
        self._places: dict[str, _Place] = {}
        self.remotes: dict[str, RemotePlace] = {}
        """The turns of other nodes with calls in progress here, by their keys."""
        self._numbers = itertools.count(1)
        broker.listen(self._subjects + node, self.receive)

    # --- At home ---

    def carry(self, caller: Caller) -> dict[str, str]:
        """The data that another node needs to join a tool run of this node."""
        budgets = getattr(caller.runtime, "budgets", None)
        if not isinstance(budgets, Budgets):
            return {}
        run = self._runs.setdefault((caller.node.turn_id, caller.tool_use_id or ""), _Run(caller, budgets))
        caller.beyond = run  # this reference keeps the run alive until its tool ends
        carried = {"node": self.node}
        if caller.node.accounts or any(each.per in OF_TREES for each in budgets.ledger.budgets):
            carried["grants"] = "1"
        return carried

    def receive(self, _subject: str, payload: bytes, reply: str) -> None:
        try:
            received = msgspec.json.decode(payload, type=TreeMessage)
        except msgspec.DecodeError as error:  # of another version
            _log.debug("tree_message_not_read", error=str(error))
            return
        if received.what == "cancel":
            if (remote := self.remotes.get(received.key)) is not None:
                remote.cancel()
            return
        place = self._places.get(received.key)
        if place is None:
            run = self._runs.get((received.turn, received.tool))
            if run is None:  # the tool has ended, so its calls no longer belong to the tree
                if received.what == "busy":
                    self.send(received.sender, TreeMessage("cancel", received.key))
                if reply:
                    self._broker.publish(reply, msgspec.json.encode(Grant(granted=False)))
                return
            place = _Place(self, run, received.key, received.sender)
            self._places[received.key] = place
        answer = place.take(received)
        if answer is not None and reply:
            self._broker.publish(reply, msgspec.json.encode(answer))
        if place.idle:
            self._places.pop(received.key, None)

    # --- Far from home ---

    def reach(self, caller: Caller) -> None:
        """Make the object that represents a far turn report to the turn's home node."""
        home = caller.carried.get("node")
        if not home or caller.node.remote is not None:
            return
        caller.node.remote = RemotePlace(self, f"{self.node}:{next(self._numbers)}", home, caller)

    def send(self, node: str, message: TreeMessage) -> None:
        self._broker.publish(self._subjects + node, msgspec.json.encode(message))

    async def ask(self, node: str, message: TreeMessage) -> Grant:
        """Send a message to a node and return its answer. Without an answer, nothing is granted."""
        payload = msgspec.json.encode(message)
        answer = await self._broker.request(self._subjects + node, payload, GRANT_SECONDS)
        return Grant(granted=False) if answer is None else msgspec.json.decode(answer, type=Grant)


class _Run:
    """A tool run on this node that another node has joined."""

    def __init__(self, caller: Caller, budgets: Budgets) -> None:
        self.caller = caller
        self.budgets = budgets
        node = caller.node
        self.payer = Payer("", "", {}, node.turn_id, node.root_turn_id, node.accounts)


class _Place:
    """The home node's record of a far node with calls in progress for one of its turns."""

    def __init__(self, trees: RemoteTrees, run: _Run, key: str, sender: str) -> None:
        self._trees = trees
        self._run = run
        self._key = key
        self._sender = sender
        self._grants: list[str] = []
        self._busy = False

    @property
    def idle(self) -> bool:
        """Whether no call is in progress on the far node and no money is granted."""
        return not self._busy and not self._grants

    def take(self, received: TreeMessage) -> Grant | None:
        caller = self._run.caller
        match received.what:
            case "busy":
                self._busy = True
                caller.node.adopt(caller, self, self._cancel)
                if caller.refusal:
                    self._cancel()
                return Grant(granted=True)
            case "idle":
                self._busy = False
                if self._grants:
                    grants, self._grants = self._grants, []
                    self._run.budgets.take_back(grants, received.amount)
                caller.node.release(self)
            case "child":
                assert received.child is not None
                caller.note(received.child)
            case "called":
                caller.node.count_calls_elsewhere(received.calls)
            case "spent":
                caller.node.count(received.cost or CostSum(), received.usage)
            case "money":
                return self._grant(received.amount)
            case _:
                pass
        return None

    def _grant(self, amount: Amount) -> Grant:
        name = f"{self._key}:{len(self._grants) + 1}"
        if self._run.caller.refusal:
            return Grant(granted=False)
        refusal = self._run.budgets.lend(name, self._run.payer, amount)
        if refusal is None:
            self._grants.append(name)
        return Grant(granted=refusal is None)

    def _cancel(self) -> None:
        self._trees.send(self._sender, TreeMessage("cancel", self._key))


class RemotePlace:
    """Represents a turn of another node on this node, see `engine.tree.RemoteTurn`."""

    def __init__(self, trees: RemoteTrees, key: str, home: str, caller: Caller) -> None:
        self._trees = trees
        self._home = home
        self._node = caller.node
        self._about = TreeMessage("busy", key, trees.node, caller.node.turn_id, caller.tool_use_id or "")
        self._account: RemoteAccount | None = None
        self._telling = anyio.Lock()
        self._is_known = False
        if "grants" in caller.carried:
            self._open_account()

    def _open_account(self) -> None:
        self._account = RemoteAccount(self, self._node.turn_id)
        self._node.accounts = (self._account,)

    async def announced(self) -> None:
        """Without this wait, the tool's result could arrive before the first message."""
        async with self._telling:
            if not self._is_known:
                self._trees.remotes[self._about.key] = self
                await self._trees.ask(self._home, self._about)
                self._is_known = True

    def idle(self) -> None:
        spent = _NOTHING
        if self._account is not None:
            spent = self._account.used
            self._open_account()
        if self._is_known:
            self._is_known = False
            self._trees.remotes.pop(self._about.key, None)
            self._send(msgspec.structs.replace(self._about, what="idle", amount=spent))

    def started(self, child: ChildTurn) -> None:
        self._send(msgspec.structs.replace(self._about, what="child", child=child))

    def called(self, calls: int) -> None:
        self._send(msgspec.structs.replace(self._about, what="called", calls=calls))

    def spent(self, part: CostSum, usage: TokenUsage | None) -> None:
        self._send(msgspec.structs.replace(self._about, what="spent", cost=part, usage=usage))

    def cancel(self) -> None:
        """Cancel the calls in progress here, and refuse new calls, because the turn has ended."""
        turn = self._node.turn_id
        self._node.refusal = f"turn {turn} on another node has ended, so its tools can make no more calls"
        self._node.cancel_open()

    async def ask(self, amount: Amount) -> Grant:
        return await self._trees.ask(self._home, msgspec.structs.replace(self._about, what="money", amount=amount))

    def _send(self, message: TreeMessage) -> None:
        self._trees.send(self._home, message)


class RemoteAccount(Account):
    """The money that the home node has granted for calls on this node. Each call requests its maximum cost."""

    def __init__(self, place: RemotePlace, turn_id: str) -> None:
        super().__init__(Budget(max_cost_usd=0, max_tokens=0, per="turn", unpriced="refuse"), turn_id)
        self._place = place
        self._unpriced = False

    async def secure(self, amount: Amount, now_us: int) -> bool:
        if self.refuses(amount, now_us) is None:
            return False
        grant = await self._place.ask(amount)
        if not grant.granted:
            return False
        self._max_money = (self._max_money or 0) + amount.money
        self._max_tokens = (self._max_tokens or 0) + amount.tokens
        self._unpriced = self._unpriced or amount.nano_usd is None
        return True

    def refuses(self, amount: Amount, now_us: int) -> Refusal | None:
        if amount.nano_usd is None and self._unpriced:
            amount = Amount(0, amount.tokens)
        return super().refuses(amount, now_us)

    @property
    def used(self) -> Amount:
        """The total spending on this node. Calls with unknown usage are counted with their maximum cost."""
        state = self.state(0)
        return Amount(state.spent.money + state.unknown.money, state.spent.tokens + state.unknown.tokens)

"""The rows that a store returns: sums of calls, statistics, sessions, jobs and batches."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import NamedTuple

import msgspec

from callboard.bus.values.messages import Message, SessionSetup
from callboard.bus.values.usage import Cost, TokenUsage, usd_of


class FoundMessage(msgspec.Struct, frozen=True):
    """A message of a session with captured content."""

    session_id: str
    position: int
    """The index of the message in the session, from 0."""
    message_id: str | None
    ts_us: int
    """The time of the message, in microseconds UTC."""
    role: str
    """The role: ``user``, ``assistant``, ``tool`` or ``system``. Empty if it can't be read."""
    text: str
    """The text of the message, with thoughts and the arguments and results of tools."""


class CostRow(msgspec.Struct, frozen=True, kw_only=True):
    """The sums of a group of calls. No amount includes calls without a cost; they are counted separately."""

    key: tuple[str, ...]
    """The values of the group, in the requested order. A day is an ISO date (UTC)."""
    by: tuple[str, ...] = ()
    """The dimensions of `key`, so that ``row["model"]`` is the group's model."""
    calls: int
    """The number of attempts of calls, ended or not."""
    total_input_tokens: int
    """Input tokens, including tokens that were read from or written to the provider's cache."""
    output_tokens: int
    """Output tokens, `reasoning_tokens` included."""
    cost_nano_usd: int
    """The cost of the calls that have one, in nano-USD: current, or under the requested version."""
    at_call_time_nano_usd: int
    """The cost at call time of the calls that had a cost, in nano-USD."""
    unpriced: int
    """The number of calls with usage and without a cost."""
    estimated: int
    """The number of calls with estimated usage."""
    cached_input_tokens: int = 0
    """Input tokens that were read from the provider's cache."""
    cache_creation_input_tokens: int = 0
    """Input tokens that were written to the provider's cache."""
    reasoning_tokens: int = 0
    """Reasoning tokens."""
    unknown: int = 0
    """The number of calls with unknown usage: they got no answer, or have not ended."""
    at_call_time_unpriced: int = 0
    """The number of calls with usage that had no cost at call time."""

    def __getitem__(self, dimension: str) -> str:
        """The group's value of a dimension. Raises KeyError if the sums are not grouped by it."""
        try:
            return self.key[self.by.index(dimension)]
        except ValueError:
            raise KeyError(dimension) from None

    @property
    def usd(self) -> Decimal:
        """The known part of the cost in US dollars, exactly."""
        return usd_of(self.cost_nano_usd)

    @property
    def cache_hit_rate(self) -> float | None:
        """The fraction of all input tokens that came from the cache, from 0 to 1; None without input."""
        return self.cached_input_tokens / self.total_input_tokens if self.total_input_tokens else None


class Percentiles(msgspec.Struct, frozen=True):
    """The spread of some values. Each percentile is one of the values; None if there are no values."""

    count: int = 0
    """The number of values."""
    p50: float | None = None
    """The smallest value that at least 50 % of the values do not exceed."""
    p90: float | None = None
    """The smallest value that at least 90 % of the values do not exceed."""
    p99: float | None = None
    """The smallest value that at least 99 % of the values do not exceed."""


class StatisticsRow(msgspec.Struct, frozen=True, kw_only=True):
    """The outcomes and the speed of a group of attempts."""

    key: tuple[str, ...]
    """The values of the group, in the requested order. A day is an ISO date (UTC)."""
    attempts: int
    """The number of attempts."""
    completed: int
    """The number of attempts that ended well."""
    failed: int
    """The number of failed attempts."""
    cancelled: int
    """The number of cancelled attempts."""
    running: int
    """The number of attempts without an end."""
    retried: int
    """The number of failed attempts after which the call continued."""
    total_input_tokens: int
    """Input tokens, as in `CostRow`."""
    output_tokens: int
    """Output tokens, as in `CostRow`."""
    cached_input_tokens: int
    """Input tokens that were read from the provider's cache."""
    estimated: int = 0
    """The number of attempts with estimated usage."""
    unpriced: int = 0
    """The number of attempts with usage and without a cost."""
    unknown: int = 0
    """The number of attempts with unknown usage."""
    latency_ms: Percentiles = Percentiles()
    """Milliseconds from the call's start to the end of a completed attempt, waits and retries included."""
    first_token_ms: Percentiles = Percentiles()
    """Milliseconds from the call's start to the first token."""
    tokens_per_second: Percentiles = Percentiles()
    """Output tokens over the time from the first token to the end, to a tenth. Only completed streamed attempts
    count, with at least two output tokens and with usage that is not estimated.
    """

    @property
    def cache_hit_rate(self) -> float | None:
        """The fraction of all input tokens that came from the cache, from 0 to 1; None without input."""
        return self.cached_input_tokens / self.total_input_tokens if self.total_input_tokens else None


class ErrorRow(msgspec.Struct, frozen=True, kw_only=True):
    """The failed attempts with one class of error on one model."""

    error_class: str
    """The class of the error."""
    model: str
    """The model as routed, ``provider:name``."""
    attempts: int
    """The number of failed attempts."""
    ended: int
    """The number of attempts whose failure ended the call. The other calls were retried."""
    calls: int
    """The number of calls that the attempts belong to."""
    first_us: int
    """The start of the first attempt, in microseconds UTC."""
    last_us: int
    """The start of the latest attempt, in microseconds UTC."""
    error_type: str | None
    """The type of the latest error."""
    error_message: str | None
    """The text of the latest error."""
    provider_status: int | None
    """The HTTP status of the latest error; None if there was no answer."""
    provider_code: str | None
    """The provider's own code of the latest error."""
    request_id: str
    """The id of the request with the latest error."""


class SessionRow(msgspec.Struct, frozen=True, kw_only=True):
    """A session, and the usage of all its calls."""

    session_id: str
    """The id of the session."""
    first_us: int
    """The time of the session's first event, in microseconds UTC."""
    last_us: int
    """The time of the session's last event, in microseconds UTC."""
    model: str | None
    """The current model as text, as it was requested."""
    tags: dict[str, str]
    """The tags of the session."""
    turns: int
    """The number of turns that have started."""
    calls: int
    """The number of attempts of the session's calls."""
    total_input_tokens: int
    """Input tokens, cached ones included."""
    output_tokens: int
    """Output tokens."""
    cost_nano_usd: int
    """The sum of the known current costs, in nano-USD."""
    unpriced: int
    """The number of calls with usage and without a cost."""
    estimated: int = 0
    """The number of calls with estimated usage."""
    unknown: int = 0
    """The number of calls with unknown usage."""
    messages: int = 0
    """The number of stored messages."""
    resumable: bool = False
    """Whether the whole session is stored, so that an engine can resume it."""
    name: str | None = None
    """A name for people."""


NOTHING_SAID = "its messages are not stored, although the model was called"
"""The entry in `SavedSession.missing` for a session that has calls but no message."""


class SavedSession(msgspec.Struct, frozen=True, kw_only=True):
    """A session with its stored content."""

    session_id: str
    """The id of the session."""
    setup: SessionSetup | None
    """The setup of the session; None if it is not stored."""
    withheld: str | None
    """The reason why the stored setup has no system prompt; None if the setup is complete."""
    tags: dict[str, str]
    """The tags of the session."""
    name: str | None
    """A name for people."""
    messages: tuple[Message, ...]
    """The messages that are stored, in order."""
    missing: tuple[str, ...]
    """The parts that are not stored, each with the reason."""


class StoredJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job at a provider, such as a video's. A field is None if it is unknown."""

    created_by: str | None = None
    """The request that created the job."""
    seconds: int | None = None
    """The length of the video, in seconds."""
    size: str | None = None
    """The size of the video in pixels, as text."""
    audio: bool | None = None
    """Whether the video has sound."""
    key: str | None = None
    """The name of the key that the job was created with."""
    counted: Cost | None = None
    """The cost of the job; None until a call records it."""


class OpenReply(msgspec.Struct, frozen=True, kw_only=True):
    """A reply that a provider makes in the background for a process that has ended."""

    request_id: str
    """The id of the call."""
    response_id: str
    """The provider's id of the reply."""
    model: str
    """The model as routed, ``provider:name``."""
    message_id: str = ""
    """The id of the message that the reply will become."""
    session_id: str | None = None
    """The id of the session; None without one."""
    turn_id: str | None = None
    """The id of the turn that requested the reply."""
    attempt: int = 1
    """The number of the attempt, from 1."""
    key: str | None = None
    """The name of the key that was used for the request; None for the adapter's own key."""
    tags: dict[str, str] | None = None
    """The tags of the call."""
    started_us: int = 0
    """The time of the request, in microseconds since the epoch, UTC."""


class StoredSubmission(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a batch that was sent, or is being sent."""

    call_id: str
    """The id of the call that creates the job."""
    began_at: int
    """The time before sending, in seconds since the epoch, UTC."""
    job_id: str | None = None
    """The provider's id of the job; None if the creation was never answered."""
    key: str | None = None
    """The name of the key that the job was created with."""
    certain: bool = True
    """Whether the job was certainly created for this part."""
    ended: bool = False
    """Whether all results of the part are counted."""


class StoredBatch(msgspec.Struct, frozen=True, kw_only=True):
    """A batch in the trace."""

    batch_id: str
    """The batch's id."""
    provider: str
    """The adapter's name."""
    model: str
    """The model as routed, ``provider:name``."""
    parts: tuple[int, ...]
    """The number of requests in each part."""
    digest: str
    """The start of the hash of all requests."""
    planned_us: int
    """The time when the batch was planned, in microseconds since the epoch, UTC."""
    request_ids: tuple[str, ...] = ()
    """The caller's ids of the requests; empty if the caller gave none."""
    key: str | None = None
    """The name of the key to use for the batch."""
    tags: dict[str, str] | None = None
    """The tags of the batch's calls."""
    submissions: Mapping[int, StoredSubmission] = {}
    """The parts that were sent, by their numbers."""
    status: str | None = None
    """The status of the batch at the last check."""
    succeeded: int = 0
    """The number of answered requests at the last check."""
    failed: int = 0
    """The number of failed requests at the last check."""
    completed: bool = False
    """Whether all results are counted."""


class CountedCall(msgspec.Struct, frozen=True):
    """A call that the trace already contains."""

    cost: Cost | None
    """The cost of the call; None if it has none."""
    usage: TokenUsage | None
    """The tokens of the call; None if unknown."""
    error_type: str | None = None
    """The class of the error that ended the call's last attempt; None if the attempt ended well."""


# --- Sums for budgets ---


class SpendingQuery(msgspec.Struct, frozen=True, kw_only=True):
    """The calls that are included in a budget, and their grouping."""

    by: str | None = None
    """The dimension of the calls that has one account for each value: ``session_id``, ``provider``, ``model`` or
    ``tag:KEY``. None means one account for all calls.
    """
    value: str | None = None
    """The only value to count; None means every value."""
    since_us: int | None = None
    """The start of the time that counts, in microseconds since the epoch; None means no limit."""
    slot_us: int | None = None
    """The length of a slot in microseconds. Slots are counted from `since_us`. None means one slot."""
    current: bool = False
    """Whether the current costs count, instead of the costs at call time."""
    imported: bool = False
    """Whether imported calls count."""
    run_id: str | None = None
    """The run whose calls are included; None means every run."""


class SpendingRow(msgspec.Struct, frozen=True, kw_only=True):
    """The sums of one account in one slot."""

    value: str
    """The value of the dimension; empty for calls without a value."""
    slot: int
    """The number of the slot, from 0."""
    unknown: bool
    """Whether the row sums calls with unknown usage, counted with the amount reserved for them."""
    calls: int
    nano_usd: int
    """The sum of the known costs, in nano-USD."""
    tokens: int
    """The sum of input and output tokens."""


class Spending(msgspec.Struct, frozen=True):
    """The results of several queries, all at one time."""

    rows: list[list[SpendingRow]]
    """A list of sums for each query."""
    committed_seq: int
    """The number of the last event of the caller's run that the sums include."""


# --- Imports ---


class ImportedFile(msgspec.Struct, frozen=True, kw_only=True):
    """The reading position in an imported file."""

    source: str
    """The name of the import source that read the file."""
    path: str
    size: int
    """The size of the file when it was read, in bytes."""
    mtime_ns: int
    """The time of the file's last change when it was read, in nanoseconds."""
    inode: int
    """The number of the file in its file system."""
    read_to: int = 0
    """The number of bytes at the start that need not be read again."""
    line: int = 0
    """The number of lines in `read_to` bytes."""
    digest: str = ""
    """A hash of the first `read_to` bytes. If it differs, the file was rewritten. Empty if the bytes must be read
    again.

    The text starts with ``+`` if the messages were read, too.
    """
    state: str = ""
    """The source's own state at the reading position."""


class Revision(NamedTuple):
    """A change of a call's revision in the ledger of imports."""

    request_id: str
    before: int | None
    """The revision in the ledger when the caller read it; None for a new call."""
    after: int


class Imported(NamedTuple):
    """A call in the ledger of imports."""

    revision: int
    """The largest revision that was imported."""
    stored: bool
    """Whether the call is in the trace. False if it was pruned."""

"""The event catalogue: every event that Callboard itself publishes.

An event's topic is its tag. Fields are only ever added, with defaults; a changed meaning is a new topic. Where a
stored event needs more than a default to be read today, its class counts its `SCHEMA` up, and the trace store's
`upcast` says how the old form becomes the new one. No event of `llm.*` carries message content: content travels in
`session.message_appended`, by reference, and is persisted only if the host asks for it.
"""

from __future__ import annotations

from typing import TypeAlias

from .actors import ActorCrashed, ActorEscalated, ActorRestarted, ActorStarted, ActorStopped
from .batches import (
    BatchCompleted,
    BatchPartEnded,
    BatchPlanned,
    BatchProgress,
    BatchSubmitted,
    BatchSubmitting,
)
from .budgets import BudgetLow, BudgetRefused, BudgetReserved, BudgetSettled
from .calls import LlmCallAccepted, LlmCallCompleted, LlmCallFailed, LlmCallGuarded, LlmCallStarted
from .jobs import JobCompleted, JobCreated, JobFailed, JobProgress
from .nodes import NodeBrokerChanged, NodeLeaseChanged, NodeLimitsChanged, SessionClaimed, SessionLost
from .operation import (
    ConfigReloaded,
    PricingProgress,
    PricingRepriced,
    PricingTableLoaded,
    ProviderAvailabilityChanged,
    StoreShippingChanged,
    StoreStateChanged,
)
from .sessions import (
    SessionConfigured,
    SessionCreated,
    SessionMessageAppended,
    SessionModelChanged,
    SessionRenamed,
    SessionTurnCompleted,
    SessionTurnStarted,
)
from .tools import ToolFinished, ToolProgress, ToolStarted

CatalogueEvent: TypeAlias = (
    LlmCallStarted
    | LlmCallAccepted
    | LlmCallGuarded
    | LlmCallCompleted
    | LlmCallFailed
    | ActorStarted
    | ActorCrashed
    | ActorRestarted
    | ActorStopped
    | ActorEscalated
    | ProviderAvailabilityChanged
    | ConfigReloaded
    | SessionCreated
    | SessionConfigured
    | SessionModelChanged
    | SessionRenamed
    | SessionTurnStarted
    | SessionTurnCompleted
    | SessionMessageAppended
    | ToolStarted
    | ToolProgress
    | ToolFinished
    | JobCreated
    | JobProgress
    | JobCompleted
    | JobFailed
    | BatchPlanned
    | BatchSubmitting
    | BatchSubmitted
    | BatchProgress
    | BatchPartEnded
    | BatchCompleted
    | PricingTableLoaded
    | PricingProgress
    | PricingRepriced
    | BudgetReserved
    | BudgetSettled
    | BudgetRefused
    | BudgetLow
    | NodeBrokerChanged
    | NodeLimitsChanged
    | NodeLeaseChanged
    | SessionClaimed
    | SessionLost
    | StoreShippingChanged
    | StoreStateChanged
)
"""Every event of the bus that Callboard itself publishes."""

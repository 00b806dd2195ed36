"""The inputs, validated on construction: a channel, a trial, a sweep.

- `channel`: `ChannelSpec`, what a backend makes
- `trial`: `TrialSpec`, one measurement
- `sweep`: `SweepSpec`, what a run measures, and the trials that it consists of
- `checks`: what values may be
"""

from __future__ import annotations

from ipcbench.spec.channel import (
    DELIVERIES,
    MAX_DEPTH,
    NAME_PREFIX,
    PATTERNS,
    WAIT_STRATEGIES,
    ChannelSpec,
    Delivery,
    Pattern,
    WaitStrategy,
)
from ipcbench.spec.checks import require_choice, require_range, require_some, whole_number
from ipcbench.spec.sweep import (
    AUTO_PACED_MESSAGES,
    AUTO_RATE_BYTES_PER_S,
    AUTO_RATE_PER_S,
    LOOK_SAMPLES,
    LOOK_WARMUP_S,
    LOOK_WINDOW_S,
    MIN_TAIL_MESSAGES,
    PINGPONG_WINDOW_RATIO,
    TAIL_MESSAGES,
    TURN_S,
    UNCOUNTED_OF_TURN,
    USUAL_LOADS,
    SweepSpec,
    Variant,
    recorded_names,
)
from ipcbench.spec.trial import (
    CODEC_NAMES,
    COUNTED_PAYLOADS,
    MAX_PAYLOAD_BYTES,
    MODES,
    PAYLOAD_KINDS,
    SAMPLE,
    TOUCHES,
    VARIANT_MARK,
    CodecName,
    Mode,
    PayloadKind,
    Touch,
    TrialSpec,
    is_sized_in_bytes,
)

__all__ = [
    "AUTO_PACED_MESSAGES",
    "AUTO_RATE_BYTES_PER_S",
    "AUTO_RATE_PER_S",
    "CODEC_NAMES",
    "COUNTED_PAYLOADS",
    "DELIVERIES",
    "LOOK_SAMPLES",
    "LOOK_WARMUP_S",
    "LOOK_WINDOW_S",
    "MAX_DEPTH",
    "MAX_PAYLOAD_BYTES",
    "MIN_TAIL_MESSAGES",
    "MODES",
    "NAME_PREFIX",
    "PATTERNS",
    "PAYLOAD_KINDS",
    "PINGPONG_WINDOW_RATIO",
    "SAMPLE",
    "TAIL_MESSAGES",
    "TOUCHES",
    "TURN_S",
    "UNCOUNTED_OF_TURN",
    "USUAL_LOADS",
    "VARIANT_MARK",
    "WAIT_STRATEGIES",
    "ChannelSpec",
    "CodecName",
    "Delivery",
    "Mode",
    "Pattern",
    "PayloadKind",
    "SweepSpec",
    "Touch",
    "TrialSpec",
    "Variant",
    "WaitStrategy",
    "is_sized_in_bytes",
    "recorded_names",
    "require_choice",
    "require_range",
    "require_some",
    "whole_number",
]

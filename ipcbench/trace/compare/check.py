"""Conditions that fail a trace in continuous integration: `Matmul.p99_ms>5`."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from ipcbench.errors import ConfigError, closest, did_you_mean
from ipcbench.stats.estimates import has_quantile
from ipcbench.trace.compare.methods import Method, Methods
from ipcbench.util.units import format_significant

EVERY: Final = "*"
"""Stands for all methods."""

_FORM = re.compile(r"\s*(.+)\.(\w+)\s*(>=|<=|==|!=|>|<)\s*([-+]?\d+(?:\.\d*)?(?:[eE][-+]?\d+)?)\s*", re.DOTALL)
_TIME = re.compile(r"(p50|p90|p99|mean|max)_(us|ms|s)")
_UNITS_NS = {"us": 1e3, "ms": 1e6, "s": 1e9}
_OPERATORS: Final[dict[str, Callable[[float, float], bool]]] = {
    ">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le, "==": operator.eq, "!=": operator.ne,
}  # fmt: skip
_ALLOWED = (
    "METHOD.QUANTITY OP NUMBER, such as Matmul.p99_ms>5 or '*.errors>0'; quantities: p50, p90, p99, mean and max with "
    "_us, _ms or _s; calls, errors, share_percent, MiB_per_s, STAGE_percent, unaccounted_percent; OP: > >= < <= == !="
)
_MIB = 2**20


@dataclass(frozen=True, slots=True)
class Condition:
    """What must not hold."""

    text: str
    method: str
    quantity: str
    compare: str
    limit: float


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One condition on one method.

    Attributes:
        value: None if nobody knows.
        holds: whether the condition holds, or may hold for calls whose failures nobody counted; it is then a failure.
        remark: a caveat about the figure; may be empty.
    """

    condition: Condition
    method: str
    value: float | None
    holds: bool
    remark: str = ""

    @property
    def line(self) -> str:
        """The result as one line of text."""
        name = "".join(char if char.isprintable() else " " for char in self.method)
        value = "unknown" if self.value is None else format_significant(self.value, 4)
        relation = f"{self.condition.compare} {self.condition.limit:g}"
        comparison = f"{name}.{self.condition.quantity} = {value}, {'' if self.holds else 'not '}{relation}"
        return f"{'FAIL' if self.holds else 'ok  '} {comparison}{f' ({self.remark})' if self.remark else ''}"


def parse_condition(text: str) -> Condition:
    """Return the condition in `text`.

    Raises:
        ConfigError: it is not a condition.
    """
    match = _FORM.fullmatch(text)
    if match is None:
        raise ConfigError("--fail-if", text, _ALLOWED)
    quantity = match[2]
    known = quantity in {"calls", "errors", "share_percent", "MiB_per_s"} or quantity.endswith("_percent")
    if not known and _TIME.fullmatch(quantity) is None:
        raise ConfigError("--fail-if", text, _ALLOWED)
    return Condition(text, match[1].strip(), quantity, match[3], float(match[4]))


def check(trace: Methods, condition: Condition) -> list[CheckResult]:
    """Return the result for the method, or for each of them.

    Raises:
        ConfigError: the trace has no such method, or none of its methods has such a stage.
    """
    if condition.method == EVERY:
        methods = list(trace.methods.values())
    elif condition.method in trace.methods:
        methods = [trace.methods[condition.method]]
    else:
        meant = did_you_mean(closest(condition.method, trace.methods))
        raise ConfigError("--fail-if", condition.text, f"a method of this trace{meant}: {_some(trace.methods)}")
    stage = _stage(condition)
    if stage is not None:
        methods = [method for method in methods if stage in method.sums.stage_ns or stage == "unaccounted"]
        if not methods:
            stages = dict.fromkeys(name for method in trace.methods.values() for name in method.sums.stage_ns)
            raise ConfigError("--fail-if", condition.text, f"a stage of the method: {_some(stages)}")
    return [_result(trace, condition, method) for method in methods]


def _stage(condition: Condition) -> str | None:
    name = condition.quantity.removesuffix("_percent")
    return None if condition.quantity in {name, "share_percent"} else name


def _some(names: dict[str, object] | dict[str, Method] | dict[str, None]) -> str:
    shown = ", ".join(list(names)[:10])
    return shown if len(names) <= 10 else f"{shown} and {len(names) - 10} more"


def _result(trace: Methods, condition: Condition, method: Method) -> CheckResult:
    value, remark = _value(trace, condition, method)
    cannot_tell = condition.quantity == "errors"  # a gate that cannot tell must not pass
    holds = cannot_tell if value is None else _OPERATORS[condition.compare](value, condition.limit)
    return CheckResult(condition, method.name, value, holds, remark)


def _value(trace: Methods, condition: Condition, method: Method) -> tuple[float | None, str]:
    """Return the figure and a caveat about it."""
    sums, quantity = method.sums, condition.quantity
    if quantity == "calls":
        return float(sums.calls_count), ""
    some = f"of the {sums.timed_count:,} timed calls only" if sums.untimed_count else ""
    if quantity == "errors":
        fails = _OPERATORS[condition.compare](sums.failed_count, condition.limit)
        is_sure = not some or (fails and condition.compare.startswith(">"))  # more may have failed, not fewer
        return (float(sums.failed_count), some) if is_sure else (None, "calls that were only counted may have failed")
    value, remark = _of_timed(trace, condition, method)
    return value, remark or some


def _of_timed(trace: Methods, condition: Condition, method: Method) -> tuple[float | None, str]:
    """Return a figure of the timed calls, and a caveat about it."""
    sums, quantity = method.sums, condition.quantity
    if not sums.timed_count:
        return None, "no call was timed"
    if match := _TIME.fullmatch(quantity):
        value, remark = _time_ns(method, match[1])
        return value / _UNITS_NS[match[2]], remark
    stage = _stage(condition)
    if quantity == "MiB_per_s":
        moved = sums.moved_bytes
        if sums.sized_count > sums.timed_count:
            return None, "of some of its bytes no time is known"
        return (None, "its bytes are unknown") if moved is None else (_ratio(moved / _MIB, sums.total_ns / 1e9), "")
    if stage is None:
        return 100.0 * _ratio(sums.total_ns, trace.total_ns), ""
    unaccounted = sums.total_ns - sum(sums.stage_ns.values())
    return 100.0 * _ratio(unaccounted if stage == "unaccounted" else sums.stage_ns[stage], sums.total_ns), ""


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _time_ns(method: Method, figure: str) -> tuple[float, str]:
    sums = method.sums
    if figure == "mean":
        return sums.total_ns / sums.timed_count, ""
    if figure == "max":
        return float(sums.longest_ns), ""
    probability = int(figure[1:]) / 100
    enough = has_quantile(sums.timed_count, probability) or figure == "p50"
    remark = "" if enough else f"of {sums.timed_count:,} calls only"
    return sums.quantile_ns(probability) or 0.0, remark

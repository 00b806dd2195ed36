"""The answer for one setting, the same sentence on the screen, in the report, in JSON and from `recommend`."""

from __future__ import annotations

from dataclasses import dataclass

from ipcbench.analysis.recommend.question import Question
from ipcbench.analysis.recommend.recommend import recommend
from ipcbench.analysis.summary.cells import SettingSummary, Summary
from ipcbench.analysis.summary.wording import verdict_words
from ipcbench.errors import IpcbenchError
from ipcbench.results.store import Run


@dataclass(frozen=True, slots=True)
class Answer:
    """What is said of a setting."""

    sentence: str
    """What `recommend` answers, or the verdict of its table where that answers nothing."""
    detail: str = ""
    """Why it answers nothing."""
    asked: str = ""
    """The options with which `ipcbench recommend` names a transport for the setting; empty if it names none."""


def setting_answer(run: Run, summary: Summary, result: SettingSummary) -> Answer:
    """Return the answer for one setting of a run."""
    setting = result.setting
    if setting.neighbours or run.info.variant_versions:  # of neither does a recommendation speak
        return Answer(verdict_words(result))
    needs = ("latest-value",) if setting.delivery == "latest_value" else ()
    try:
        question = Question(setting.payload_bytes, setting.readers, needs=needs)
        answer = recommend(run, question, summary=summary)
        asked = " ".join((f"--size {setting.payload_bytes}", *(f"--needs {need}" for need in needs)))
        return Answer(answer.sentence(), asked=asked if answer.backend is not None else "")
    except IpcbenchError as error:
        return Answer(verdict_words(result), f"No recommendation: {error}")

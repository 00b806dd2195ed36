"""The words of a trace's page, in English and Chinese."""

from __future__ import annotations

from typing import Final

from ipcbench.trace.report.words import Language

_WORDS: Final[dict[str, tuple[str, str]]] = {
    "brand": ("ipcbench trace report", "ipcbench 跟踪报告"),
    "skip": ("Skip to the answer", "跳到结论"),
    "answer": ("Answer", "结论"),
    "verdict": (
        "{calls} calls took {total}, {share} of that in {method}.",
        "{calls} 次调用共 {total}，其中 {method} 占 {share}。",
    ),
    "verdict stage": ("Most of its time is {stage}: {share}.", "其时间主要用于{stage}：{share}。"),
    "verdict save": ("The most to save: {finding}", "最可节省之处：{finding}"),
    "verdict none": ("No rule finds anything to change.", "没有规则发现可改之处。"),
    "verdict untimed": ("{calls} calls, none of them timed.", "{calls} 次调用，均未计时。"),
    "verdict few": (
        "{calls} calls, of which too few were timed to say where their time goes.",
        "{calls} 次调用，其中计时的太少，无法判断时间花在哪里。",
    ),
    "theme": ("Switch between light and dark", "切换明暗"),
    "sections": ("Sections", "章节"),
    "state": ("State of the trace", "跟踪状态"),
    "figures": ("Figures", "数据"),
    "choice": ("Setting", "选项"),
    "series": ("Series", "系列"),
    "as_table": ("The figures as a table", "以表格显示数据"),
    "plots": ("Plots", "图表"),
    "reproduce": ("Reproduce", "重现"),
    "command": ("The command that makes this page.", "用以下命令生成本页。"),
    "copy": ("Copy", "复制"),
    "copied": ("Copied", "已复制"),
    "selected": ("Selected: press Ctrl-C", "已选中：请按 Ctrl-C"),
    "scroll": ("This table is wider than the page: scroll it sideways.", "表格比页面宽：可横向滚动。"),
    "footer": ("Made by ipcbench from the trace.", "由 ipcbench 仅根据跟踪数据生成。"),
    "hint": (
        "Point at a mark for its figures, or move between marks with the arrow keys. Click a name below a plot to show "
        "or hide it.",
        "指向标记可查看数据，也可用方向键逐个浏览；点击图下的名称可显示或隐藏。",
    ),
    "noscript": ("The plots need JavaScript; the tables hold the figures.", "图表需要 JavaScript；数据见表格。"),
    "calls": ("{count} calls", "{count} 次调用"),
    "failed": ("{count} failed", "{count} 次失败"),
    "damaged": ("{count} damaged", "{count} 处损坏"),
    "objections": ("{count} inconsistencies", "{count} 处疑点"),
    "sound": ("consistent", "自洽"),
    "shares": ("Where the time of a call goes", "每次调用的时间构成"),
    "shares reading": (
        "The stages of each method as shares of its time; the method with the longest total time is on the left.",
        "各方法中各阶段占其总时间的比例，耗时最多的方法在左。",
    ),
    "sizes": ("Time against size", "时间与数据量"),
    "sizes reading": (
        "Calls that have a record, chosen at random. Time that grows with the size is copying or the wire; time that stays flat is not.",
        "随机抽取的调用。随数据量增长的是复制或传输，平坦的则不是。",
    ),
    "timeline": ("Timeline", "时间线"),
    "timeline reading": (
        "Each bar is a call, each line a thread of a process; overlapping calls have separate lines.",
        "每个条形是一次调用，每行是一个进程的线程；重叠的调用各占一行。",
    ),
    "all": ("all calls", "全部调用"),
    "slowest": ("around the slowest call", "最慢调用前后"),
    "first": ("the first calls", "最早的调用"),
    "last": ("the last calls", "最后的调用"),
    "method": ("method", "方法"),
    "most first": ("longest total time first", "按总时间排序"),
    "share": ("share of the call", "占调用时间"),
    "moved": ("moved per call", "每次调用的数据量"),
    "time": ("time per call", "调用时间"),
    "since": ("since {at}", "自 {at} 起"),
    "since begin": ("since the first of them", "自其中第一个起"),
    "since begin, busy": ("since the first of them, idle time cut out", "自其中第一个起，空闲已省略"),
    "idle": ("{time} without any call are cut out, in {count} places.", "省略了 {count} 处共 {time} 的空闲。"),
    "line": ("line", "行"),
    "number": ("one thread each", "每行一个线程"),
    "unaccounted": ("in no stage", "未计入阶段"),
    "wait request": ("request transit", "请求传输"),
    "wait queue": ("server queue", "服务端排队"),
    "wait server": ("server work", "服务端工作"),
    "wait reply": ("reply transit", "应答传输"),
    "split": (
        "The wait is split as in the {known} of {count} calls whose server side is known.",
        "等待按 {count} 次调用中已知服务端部分的 {known} 次拆分。",
    ),
    "server": ("(server)", "（服务端）"),
    "receiver": ("(receiver)", "（接收端）"),
    "others": ("other methods", "其他方法"),
    "hidden methods": ("{count} more methods are not drawn.", "另有 {count} 个方法未绘出。"),
    "no bytes": ("{count} calls of no or unknown bytes are not drawn.", "{count} 次数据量为零或未知的调用未绘出。"),
    "hidden lines": ("{count} calls on further lines are not drawn.", "其他行上的 {count} 次调用未绘出。"),
    "mean": ("{time} of {total} per call on average", "平均每次 {total} 中占 {time}"),
    "setting": ("{count} calls", "{count} 次调用"),
    "setting timed": ("the {timed} timed calls of {count}", "{count} 次调用中计时的 {timed} 次"),
    "bytes": ("B", "B"),
}


def word(key: str, language: Language, **values: object) -> str:
    """Return a word or a sentence, with its values."""
    return _WORDS[key][language == "zh"].format(**values)

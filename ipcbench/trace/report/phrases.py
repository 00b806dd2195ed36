"""Chinese for what readers say about files: it reaches a report as English text among names."""

from __future__ import annotations

import re
from typing import Final

from ipcbench.trace.report.words import Language

COUNTS: Final = {
    "calls paired by their order alone": "仅按先后配对的调用",
    "ends without a start": "没有开始的结束",
    "files never begun": "从未写入的文件",
    "functions that put nothing": "没有存放数据的函数调用",
    "functions without an end": "没有结束的函数调用",
    "further server records of one call": "同一调用的多余服务端记录",
    "left out by an ellipsis": "以省略号略去之处",
    "missing ids": "缺失的编号",
    "processes that could not write all their calls": "未能写入全部调用的进程",
    "ratios that do not agree with durations": "与时长不符的比例",
    "repeated lines not in the log": "因重复而未写入日志的行",
    "rows that were not read, since their header is missing": "因缺少表头而未读取的行",
    "stages without a function": "没有所属函数的阶段",
    "throughputs that differ by more than 2 %": "相差超过 2 % 的吞吐",
    "torn records": "未写完的记录",
}
"""Keys of Notes.counts that are shown."""

SAYINGS: Final = {
    r"a line of more than ([\d,]+) characters": r"一行超过 \1 个字符",
    r"the compressed file is damaged: .*?(?=;|$)": "压缩文件已损坏",
    r"the compressed file breaks off": "压缩文件不完整",
    r"\bid (\d+): a time or size that is no number": r"编号 \1：时间或大小不是数",
    r"unknown columns:": "未知的列：",
    r"it was cut short: ([\d,]+) bytes are missing": r"文件被截断，缺少 \1 字节",
    r"missing; removed, or there was no room to make it": "文件缺失：已被删除，或因空间不足未能创建",
    r"missing, with the calls that have no record": "文件缺失，其中有无记录的调用",
    r"a histogram file that was never finished": "未写完的直方图文件",
    r"([\d,]+) records with impossible numbers": r"\1 条记录的数值不可能",
    r"not a file of a trace: blocks of ([\d,]+) bytes": r"不是跟踪文件：块为 \1 字节",
    r"not a file of a trace: it is shorter than a header": "不是跟踪文件：短于文件头",
    r"not a file of a trace: it does not begin as such a file does": "不是跟踪文件：开头不符",
    r"not a file of a trace: its format is version (\d+); this is version (\d+)": r"不是跟踪文件：格式版本 \1，应为 \2",
    r"not a file of a trace: .*?(?=;|$)": "不是跟踪文件：文件头无法读取",
    r"\bsegment (\d+)\b": r"第 \1 段",
    r"\(further segments\)": "（其余各段）",
    r"\(other operations\)": "（其他操作）",
    r"\(other functions\)": "（其他函数）",
    r"\(other workers\)": "（其他进程）",
    r"\(other names\)": "（其他名称）",
    r"\(other\)": "（其他）",
    r" \(client\)": "（客户端）",
    r" \(server\)": "（服务端）",
    r" \(receiver\)": "（接收端）",
    r"^functions(?=$|, )": "函数",
    r"^transfers(?=$|, )": "传输",
    r"^process(?=$|, |（)": "进程",
    r"^warm-up$": "预热",
    r"^size$": "数据大小",
    r"^unknown$": "未知",
    r"^good$": "好",
    r"^fair$": "一般",
    r"^bad$": "差",
}  # fmt: skip
"""Pattern → replacement for everything else, the longer patterns first."""


def localized(text: str, language: Language) -> str:
    """Return text in the report's language; names stay as they are."""
    if language == "en":
        return text
    if text in COUNTS:
        return COUNTS[text]
    for pattern, words in SAYINGS.items():
        text = re.sub(pattern, words, text)
    return text

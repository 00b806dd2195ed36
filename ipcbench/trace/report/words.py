"""The words of reports, in English and Chinese."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

Language: TypeAlias = Literal["en", "zh"]

WORDS: Final[dict[str, tuple[str, str]]] = {
    "title": ("Trace report", "跟踪报告"),
    "overall": ("Overall", "总体"),
    "methods": ("By method", "按方法统计"),
    "stages": ("Stages", "各阶段占比"),
    "stages by method": ("Stages by method", "按方法统计各阶段"),
    "each": ("KiB a call", "每次 KiB"),
    "slowest": ("Slowest calls", "最慢的调用"),
    "of records": (" of the {known:,} with a record ({calls:,} in all)", "（仅 {known:,} 个有记录的调用，共 {calls:,} 个）"),
    "largest": ("Largest calls", "传输最大的调用"),
    "findings": ("Findings", "发现与建议"),
    "audit": ("Audit", "审计"),
    "paths": ("Slowest paths: calls of one trace id, from the first begin to the last end", "最慢的路径：同一跟踪 id 的调用，自首个开始至末个结束"),
    "path": ("trace id", "跟踪 id"),
    "endpoints": ("Sockets and their options", "套接字及其选项"),
    "nothing": ("nothing", "无"),
    "calls": ("calls", "调用数"),
    "failed": ("failed", "失败"),
    "untimed": ("counted only", "仅计数"),
    "may miss": (
        " (a kind of call rarer than 1 in {count} may be missing from what is estimated, however long)",
        "（比每 {count} 次 1 次更少见的调用，无论多长，可能未计入估计值）",
    ),
    "planned": ("never made and of unknown time {count}", "未实际发出、时间未知 {count}"),
    "mean": ("mean", "平均"),
    "max": ("max", "最大"),
    "total": ("total", "总时间"),
    "share": ("share", "占比"),
    "method": ("method", "方法"),
    "stage": ("stage", "阶段"),
    "id": ("id", "编号"),
    "sent": ("sent KiB", "发送 KiB"),
    "recv": ("received KiB", "接收 KiB"),
    "moved": ("moved MiB", "传输 MiB"),
    "speed": ("MiB/s", "MiB/s"),
    "transport": ("transport", "传输方式"),
    "processes": ("processes", "进程数"),
    "unaccounted": ("unaccounted", "未计入"),
    "server": ("of which server", "其中服务端"),
    "split request": ("of which request transit", "其中请求传输"),
    "split queue": ("of which server queue", "其中服务端排队"),
    "split reply": ("of which reply transit", "其中应答传输"),
    "transport share": ("transport {share} (of the {joined:,} of {calls:,} calls with both sides known)",
                        "传输占 {share}（{calls:,} 次调用中 {joined:,} 次双端已知）"),
    "server share": ("the server's own column {share}: the rest of the wait is its other work or transit, unknown which",
                     "服务端自报占 {share}：其余等待为服务端其他工作或传输，无法区分"),
    "offset": (", clocks of two hosts, ± {error}", "，两台主机时钟，误差 ± {error}"),
    "outside": ("outside the call", "调用之外"),
    "gain": ("At most {gain} can be saved ({share} of the traced time).", "最多可节省 {gain}（占跟踪时间的 {share}）"),
    "R1 unsized": (
        "{share} of the time is serialization (threshold {threshold}). Out-of-band buffers or shared memory avoid it.",
        "序列化占 {share}（阈值 {threshold}）。可用带外缓冲区或共享内存。",
    ),
    "R1 sized": (
        "{share} of the time is serialization (threshold {threshold}); a plain copy of these bytes would take about "
        "{copy_ns} (5 GB/s assumed). Out-of-band buffers or shared memory avoid it.",
        "序列化占 {share}（阈值 {threshold}）；单纯复制这些数据约需 {copy_ns}（假设 5 GB/s）。可用带外缓冲区或共享内存。",
    ),
    "R2": (
        "{share} of the time is the server's work (threshold {threshold}); transport takes {transit_share}, the most "
        "that another transport could save.",
        "服务端计算占 {share}（阈值 {threshold}）；传输仅占 {transit_share}，更换传输方式最多节省这部分。",
    ),
    "R2b column": (
        "{share} of the time is waiting beyond what the server's own column says (threshold {threshold}). It may be the "
        "server's other work as well as transit, so it does not show that transport is slow: trace the server too.",
        "服务端自报之外的等待占 {share}（阈值 {threshold}）。可能是服务端其他工作，也可能是传输，不能说明传输慢：请同时跟踪服务端。",
    ),
    "R2b wait": (
        "{share} of the time is waiting for the reply (threshold {threshold}). This log does not say how much of that is "
        "the server's work, so it does not show that transport is slow: trace the server too.",
        "等待应答占 {share}（阈值 {threshold}）。日志无法区分服务端计算与传输，不能说明传输慢：请同时跟踪服务端。",
    ),
    "R3": (
        "{share} of the time is transit (threshold {threshold}), {each}. Compare with `ipcbench run` "
        "at that size on this machine.",
        "传输占 {share}（阈值 {threshold}），{each}。请在本机用 `ipcbench run` 测该大小作比较。",
    ),
    "R3 each": ("{mean_bytes} per call", "每次调用 {mean_bytes}"),
    "R3 unsized": ("bytes unknown", "字节数未知"),
    "R4": (
        "The transport is {transport}; sending and waiting take {share}. If both sides run on the same host, compare it "
        "with ipc and shared memory using `ipcbench run`.",
        "传输方式为 {transport}；发送与等待占 {share}。若双方同机，请用 `ipcbench run` 与 ipc、共享内存比较。",
    ),
    "R5": (
        "{calls} small calls (median {median_bytes}): empty round trips of {round_trip_ns} (assumed) would take {share} of "
        "the time (threshold {threshold}). Combine several calls into one; the bound assumes eight.",
        "{calls} 次小调用（中位数 {median_bytes}）：按每次空往返 {round_trip_ns}（假设）计占 {share}（阈值 {threshold}）。"
        "建议合并调用；上界按 8 合 1 计。",
    ),
    "R6": (
        "A long tail: p99 is {ratio:.1f} × p50, variation {variation:.2f} (thresholds 10 and 1). Related to: {cause}.",
        "长尾：p99 为 p50 的 {ratio:.1f} 倍，变异系数 {variation:.2f}（阈值 10 与 1）。关联因素：{cause}。",
    ),
    "R7": (
        "Requests queue at the server: {share} of the time (threshold {threshold}), {queue_ns} per call; from the first "
        "call to the last the queueing time changes by {growth:+.1f} × its mean, and the server works for these callers "
        "{busy} of the time. Use more workers, or fewer concurrent calls.",
        "请求在服务端排队：占 {share}（阈值 {threshold}），平均每次 {queue_ns}；从首次到末次排队变化 {growth:+.1f} 倍均值，"
        "服务端为这些调用者工作的时间占 {busy}。可增加工作进程，或限制并发。",
    ),
    "R8": (
        "Large messages at {mib_per_s:.0f} MiB/s (threshold {threshold}); the time includes the server's work.",
        "大消息吞吐仅 {mib_per_s:.0f} MiB/s（阈值 {threshold}）；时间包含服务端。",
    ),
    "R9": (
        "Getting and putting take {share} (threshold {threshold}), computing {compute_share}. Overlap get with compute, or "
        "move larger batches.",
        "取放数据占 {share}（阈值 {threshold}），计算占 {compute_share}。可让取数与计算重叠，或增大批次。",
    ),
    "R10": (
        "{share} of the time belongs to no stage (threshold {threshold}): mark more stages.",
        "{share} 的时间不属于任何阶段（阈值 {threshold}）：请标记更多阶段。",
    ),
    "R11": (
        "Tracing costs about {each_ns} per call, {share} of the time (threshold {threshold}): raise the sampling period.",
        "跟踪本身每次约 {each_ns}，占 {share}（阈值 {threshold}）：请提高采样周期。",
    ),
    "R12": (
        "{count} of {calls} calls failed or never ended (threshold {threshold}).",
        "{calls} 次调用中有 {count} 次失败或未结束（阈值 {threshold}）。",
    ),
    "R13": (
        "{worker} takes {ratio:.1f} × the median of {workers} workers (threshold {threshold}).",
        "{worker} 耗时为 {workers} 个进程中位数的 {ratio:.1f} 倍（阈值 {threshold}）。",
    ),
    "R14": (
        "{wide_share} of the bytes moved are float32 or float64 numbers, {mean_bytes} per call, and transit takes {share} "
        "of the time (threshold {threshold}). Types of half the width (bfloat16, float16) halve the bytes.",
        "传输数据中 {wide_share} 为 float32/float64，每次 {mean_bytes}，传输占 {share}（阈值 {threshold}）。"
        "改用半宽类型（bfloat16、float16）可减半。",
    ),
    "R15 repeated": (
        "{count} repeated lines are missing from the log: set RAY_DEDUP_LOGS=0, or read the workers' own files.",
        "{count} 行因去重丢失：请设 RAY_DEDUP_LOGS=0，或读取各进程自己的日志。",
    ),
    "R15 throughput": ("{count} printed throughputs differ from the rows' own figures by more than 2 %.",
                       "{count} 个打印的吞吐与该行数据相差超过 2 %。"),
    "R15 restarted": ("Ids start again: {count} segments, reported separately (a warm-up, a restart or another client).",
                      "编号重新开始：共 {count} 段，分别统计（预热、重启或其他客户端）。"),
    "R16 sized": (
        "The time of {stage} varies: its standard deviation is {variation:.2f} × its mean, {adjusted:.2f} × beside what a "
        "line over the size explains (threshold {threshold}).",
        "{stage} 用时波动：标准差为均值的 {variation:.2f} 倍，按数据量校正后为 {adjusted:.2f} 倍（阈值 {threshold}）。",
    ),
    "R16 unsized": (
        "The time of {stage} varies: its standard deviation is {variation:.2f} × its mean (threshold {threshold}).",
        "{stage} 用时波动：标准差为均值的 {variation:.2f} 倍（阈值 {threshold}）。",
    ),
    "S1": ("Serialization {share} > {threshold}: shared memory, a faster format, bfloat16.",
           "序列化 {share} > {threshold}：共享内存、更快的格式、bfloat16。"),
    "S2": ("Sending and receiving {share} > {threshold}: check that it is IPC and not TCP, larger buffers, batches.",
           "发送与接收 {share} > {threshold}：确认使用 IPC 而非 TCP，增大缓冲区，批量传输。"),
    "S3": ("{calls} calls > {threshold}: fuse, batch or cache.", "{calls} 次调用 > {threshold}：融合、批量或缓存。"),
    "S4": ("Get and put {share}, compute {compute_share}: {level} (good below 20 %, bad above 30 %).",
           "取放 {share}，计算 {compute_share}：{level}（低于 20 % 为好，高于 30 % 为差）。"),
    "S5": ("{mib_per_s:.1f} MiB/s: {level} (good above 500, bad below 100).",
           "{mib_per_s:.1f} MiB/s：{level}（高于 500 为好，低于 100 为差）。"),
    "negative": ("{said:.0f} calls have a negative time, the first is {what}", "{said:.0f} 次调用有负时间，首个为 {what}"),
    "negative claim": ("the log's summary has a negative value: {what} = {said}", "日志汇总出现负值：{what} = {said}"),
    "impossible": ("{said:.0f} calls have stages that are longer than the whole, the first is {what}",
                   "{said:.0f} 次调用的阶段之和超过总时间，首个为 {what}"),
    "partial": ("{what}: payloads moved through shared memory; {said:.2f} MiB is a lower bound",
                "{what}：数据经共享内存传输；{said:.2f} MiB 仅为下界"),
    "claim": ("the summary says {what} {said:g}, its rows give {found:g}", "汇总称 {what} 为 {said:g}，按行计算为 {found:g}"),
    "damaged": ("{said:.0f} damaged lines or records, such as {what}", "{said:.0f} 行或记录损坏，例如 {what}"),
    "unseen": ("{said:.0f} programs were started and not recorded, beside {found:.0f} Python processes that were: {what}",
               "启动了 {said:.0f} 个未被记录的程序（另有 {found:.0f} 个 Python 进程已记录）：{what}"),
    "count": ("{what}: {said:.0f}", "{what}：{said:.0f}"),
}  # fmt: skip


def word(key: str, language: Language) -> str:
    """Return the word of a key."""
    return WORDS[key][1 if language == "zh" else 0]

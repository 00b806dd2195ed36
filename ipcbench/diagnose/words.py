"""The words of a diagnosis, in English and Chinese."""

from __future__ import annotations

import re
from typing import Final

from ipcbench.trace.report.words import Language

WORDS: Final[dict[str, tuple[str, str]]] = {
    "title": ("Diagnosis of {source}", "{source} 的诊断"),
    "made": (
        "{calls:,} calls of {clients} took {took}, and moved {moved}. Replayed here {rounds} over {source}.",
        "{clients}的 {calls:,} 次调用耗时 {took}，传输 {moved}。已在本机以 {source} 重放 {rounds}。",
    ),
    "untimed": (
        "{calls:,} calls of {clients} that nobody made would move {moved}. Replayed here {rounds} over {source}.",
        "{clients}的 {calls:,} 次调用尚未实际发出，将传输 {moved}。已在本机以 {source} 重放 {rounds}。",
    ),
    "client": ("one client", "一个客户端"),
    "clients": ("{count} clients", "{count} 个客户端"),
    "round": ("once", "一次"),
    "rounds": ("{count} times", "{count} 次"),
    "says": (
        "The recording says {word}; {source} stands for it.",
        "记录称传输方式为 {word}，以 {source} 代表。",
    ),
    "says nothing": (
        "The recording does not say over what; {source} stands for it. Name it with --recorded-over: zmq is "
        "ZeroMQ over ipc://, zmq-tcp-insecure over tcp://, tcp plain TCP, pipe Unix sockets, shm shared memory.",
        "记录未说明传输方式，以 {source} 代表。可用 --recorded-over 指定：zmq 为 ipc:// 的 ZeroMQ，zmq-tcp-insecure 为 tcp://，"
        "tcp 为普通 TCP，pipe 为 Unix 套接字，shm 为共享内存。",
    ),
    "ipc already": (
        "It is local already: to switch to IPC is no remedy.",
        "已是本机传输：改用 IPC 不是解决办法。",
    ),
    "first calls": ("The first {count:,} calls of each client are replayed.", "每个客户端仅重放前 {count:,} 次调用。"),
    "first call": ("The first call of each client is replayed.", "每个客户端仅重放第一次调用。"),
    "few calls": (
        "Of fewer than {count} calls of a client nothing is claimed: take a larger --budget, or record more calls.",
        "客户端重放的调用不足 {count} 次时不作判断：请增大 --budget，或记录更多调用。",
    ),
    "few": (
        "With fewer than three rounds no replayed change is ranked: take a larger --budget.",
        "不足三轮，重放的改动不作排名：请增大 --budget。",
    ),
    "where": ("Where the time went, % of the calls' time", "时间去向（占调用时间的 %）"),
    "method": ("method", "方法"),
    "all": ("all", "全部"),
    "calls": ("calls", "调用数"),
    "mean": ("mean", "平均"),
    "serialize": ("serialize", "序列化"),
    "fixed": ("floor: messages", "下限：消息"),
    "bytes": ("floor: bytes", "下限：字节"),
    "excess": ("beyond floor", "超出下限"),
    "queue": ("queue", "排队"),
    "server": ("server", "服务端"),
    "unknown": ("unknown", "未知"),
    "deserialize": ("deserialize", "反序列化"),
    "other": ("outside stages", "阶段之外"),
    "legend": (
        "floor: what messages of these sizes take over {source} on this machine now, a fixed time each and what grows "
        "with their bytes. beyond floor: the rest of the way and of waiting. unknown: as that, or the server's work: "
        "record the server, too.",
        "下限：这些大小的消息现在在本机经 {source} 所需的时间，分为每条固定时间与随字节增长的时间。超出下限：其余的传输与等待。"
        "未知：超出下限的时间或服务端工作，请同时记录服务端。",
    ),
    "quicker": (
        "{count:,} calls took less than the floor here: this machine is slower now than where or when they were "
        "recorded.",
        "{count:,} 次调用比本机下限更快：本机现在比记录时更慢。",
    ),
    "busy": (
        "A server's thread that several clients call was busy for {share} of the time: the queue waits for its work.",
        "多个客户端共用的一个服务端线程在 {share} 的时间内忙碌：排队是在等待其工作。",
    ),
    "serialization": (
        "Serialization and deserialization take {share}, not counting the server's.",
        "序列化与反序列化占 {share}，不含服务端。",
    ),
    "remedies": ("What would help, the largest gain first", "有效的措施（按收益排序）"),
    "remedy": ("change", "改动"),
    "predicted": ("new total", "改后总时间"),
    "gain": ("saves % [95 %]", "节省 % [95 %]"),
    "rounds head": ("{count} rounds", "{count} 轮"),
    "round head": ("1 round", "1 轮"),
    "basis": ("from", "依据"),
    "recording": ("recording, no interval", "记录，无区间"),
    "nothing helps": ("Nothing that was tried clearly helps.", "所尝试的改动均无明确收益。"),
    "nothing judged": ("Nothing of what could be judged clearly helps.", "可判断的改动均无明确收益。"),
    "nothing known": (
        "Whether anything helps is not known: no change was replayed three times with enough calls; take a larger "
        "--budget.",
        "是否有效尚不可知：没有改动以足够的调用重放满三轮；请增大 --budget。",
    ),
    "turns": (
        "Whether anything helps cannot be told: the clients wait for one another, and a replay does not.",
        "是否有效无法判断：各客户端互相等待，而重放并不如此。",
    ),
    "judged": (
        "That is of what could be judged: {count} more changes were replayed too little to tell.",
        "以上仅就可判断者而言：另有 {count} 项改动重放不足，无法判断。",
    ),
    "judged one": (
        "That is of what could be judged: one more change was replayed too little to tell.",
        "以上仅就可判断者而言：另有一项改动重放不足，无法判断。",
    ),
    "at most": ("at most {figure}", "至多 {figure}"),
    "at least": ("at least {figure}", "至少 {figure}"),
    "unsure": ("What was replayed too little to tell", "重放不足、无法判断的改动"),
    "conditional": ("What would help on a condition", "有条件有效的措施"),
    "others": ("What does not clearly help", "无明确收益的措施"),
    "what": ("What to change, and how to try it", "如何改动与尝试"),
    "most": (
        "{name}: at least {least}, and at most {most}, if the server took no time.",
        "{name}：至少节省 {least}；若服务端不占时间，至多 {most}。",
    ),
    "unknown server": (
        "The server's share is unknown: record the server, too (`trace.serve`, or `ipcbench trace run` on both sides).",
        "服务端占比未知：请同时记录服务端（`trace.serve`，或在双端使用 `ipcbench trace run`）。",
    ),
    "chain": (
        "Two calls at a time: 0 for one client whose calls follow one another; with independent calls at most what the "
        "shorter side takes, {most}.",
        "同时进行两次调用：单个客户端顺序调用时收益为 0；若调用相互独立，至多为较短一侧的时间 {most}。",
    ),
    "floors": ("Floors here: one way on an idle channel", "本机下限：空闲通道单程"),
    "size": ("size", "大小"),
    "all calls": ("all calls", "全部调用"),
    "costs": ("Work on messages here, without a transport", "本机消息处理开销（不含传输）"),
    "codec": ("codec", "编码"),
    "pack": ("pack", "打包"),
    "unpack": ("unpack", "解包"),
    "copy hot": ("a copy, in caches", "复制（缓存内）"),
    "copy cold": ("a copy, from memory", "复制（内存）"),
    "compression": ("compression", "压缩"),
    "ratio": ("size after", "压缩后"),
    "no sample": (
        "Compression: unknown; give a file with bytes as they travel (--sample).",
        "压缩：未知；请用 --sample 提供实际传输的字节。",
    ),
    "failed": ("{name} could not be measured: {reason}", "{name} 无法测量：{reason}"),
    "compared": (
        "A call takes {times} times as long as in {source}: {before} then, {now} now. Each is one recording, on the "
        "machine as it was then.",
        "每次调用的时间为 {source} 中的 {times} 倍：之前 {before}，现在 {now}。两者各为一次记录，取决于当时的机器状态。",
    ),
    "against": ("Time of a call, beside that in {source}", "每次调用的时间，与 {source} 相比"),
    "floors apart": (
        "Floors, both measured now: over {before} before, over {now} now.",
        "下限均为现在测得：之前为 {before}，现在为 {now}。",
    ),
    "no floor before": (
        "The floor over {before} was not measured, and is in other parts of what was before: name it in --backends.",
        "未测量 {before} 的下限，之前的下限含在其他部分中：请在 --backends 中指定。",
    ),
    "part": ("part", "部分"),
    "before": ("before", "之前"),
    "now": ("now", "现在"),
    "times": ("times", "倍数"),
    "if": ("if {condition}", "前提：{condition}"),
    "joint": ("; ", "；"),
    "terms": (" ({terms})", "（{terms}）"),
    "end": (".", "。"),
}

PAGE: Final[dict[str, tuple[str, str]]] = {
    "brand": ("ipcbench diagnosis", "ipcbench 诊断"),
    "footer": (
        "Made by ipcbench from the calls, and from what was measured on this machine.",
        "由 ipcbench 根据调用与本机测量生成。",
    ),
    "ladder footer": ("Made by ipcbench from what was measured on this machine.", "由 ipcbench 根据本机测量生成。"),
    "command": ("The command that makes this page, and measures again.", "用以下命令重新测量并生成本页。"),
    "noscript": ("The plots need JavaScript; the tables hold the figures.", "图表需要 JavaScript；数据见表格。"),
    "best": (
        "What helps most: {name}, {before} → {after}.",
        "最有效：{name}，{before} → {after}。",
    ),
    "best judged": (
        "Of what could be judged, this helps most: {name}, {before} → {after}.",
        "就可判断者而言，最有效：{name}，{before} → {after}。",
    ),
    "saves": ("It saves {gain}.", "节省 {gain}。"),
    "assumed": ("Assumed: {note}.", "假设：{note}。"),
    "no rounds": (
        "Nothing is ranked: no change was replayed three times with enough calls; take a larger --budget.",
        "未作排名：没有改动以足够的调用重放满三轮；请增大 --budget。",
    ),
    "mostly unknown": (
        "{share} of the time is unknown, and nothing that was tried clearly helps: record the server, too.",
        "{share} 的时间去向未知，所尝试的改动均无明确收益：请同时记录服务端。",
    ),
    "largest": ("Largest part of the time: {part}, {share}.", "占时最多：{part}，{share}。"),
    "badge calls": ("{count} calls", "{count} 次调用"),
    "badge over": ("recorded over {word}", "记录于 {word}"),
    "badge over unknown": ("transport not recorded", "传输方式未知"),
    "badge helping": ("changes that help: {count}", "{count} 项有效"),
    "badge none": ("nothing clearly helps", "无明确收益"),
    "badge server": ("server unknown", "服务端未知"),
    "badge failed": ("{count} not measured", "{count} 项未测"),
    "section where": ("Where the time went", "时间去向"),
    "section help": ("What would help", "有效措施"),
    "section conditional": ("On a condition", "有条件有效"),
    "section unsure": ("Replayed too little", "重放不足"),
    "section others": ("No clear help", "无明确收益"),
    "section floors": ("Floors", "下限"),
    "section costs": ("Costs", "开销"),
    "section against": ("Before and now", "前后对比"),
    "section remarks": ("Remarks", "说明"),
    "section ladder": ("Stages", "各阶段"),
    "parts": ("Where the time of a call goes", "每次调用的时间构成"),
    "parts reading": (
        "The parts of each method's time, in the order of time from the bottom; all calls together are on the left.",
        "各方法时间的组成，自下而上按先后排列；最左为全部调用。",
    ),
    "parts legend": (
        "Floor: what these messages take here on an idle channel. Beyond floor: the rest of their way. Queue: a request "
        "waits for its server.",
        "下限：这些消息在本机空闲通道上所需的时间。超出下限：其余的传输时间。排队：请求等待服务端。",
    ),
    "floors title": ("Time of a message by size", "各大小消息的时间"),
    "floors reading": (
        "How long a message of each size takes one way over an idle channel. Lower is better.",
        "各大小的消息在空闲通道上单程所需的时间，越低越好。",
    ),
    "message": ("message size", "消息大小"),
    "one way": ("one way", "单程"),
    "here": ("measured on this machine", "本机测得"),
    "ladder": ("Ladder", "阶梯"),
    "ladder title": (
        "Ladder: a forward pass of {model} over {tokens} tokens",
        "阶梯：{model} 对 {tokens} 个词元的一次前向传播",
    ),
    "ladder setting": (
        "A forward pass of {model}, {tokens} tokens; {rounds} rounds",
        "{model} 的一次前向传播，{tokens} 个词元；{rounds} 轮",
    ),
    "ladder reading": (
        "Each stage changes one thing of the one to its left. Lower is better.",
        "每个阶段只改动其左侧阶段的一处。越低越好。",
    ),
    "stage": ("stage", "阶段"),
    "stage axis": ("Stage", "阶段"),
    "in order": ("in order", "按顺序"),
    "pass": ("Forward pass", "前向传播"),
    "pass head": ("s a forward pass", "每次前向传播，s"),
    "touched": ("of it fill + read", "其中填充与读取"),
    "before head": ("× of the stage before", "较前一阶段 ×"),
    "first head": ("× of the first", "较首个阶段 ×"),
    "verdict": ("verdict", "判断"),
    "point": ("{moved} MiB in {calls} calls", "{calls} 次调用共 {moved} MiB"),
    "point gain": ("× {gain} of {before}", "较{before} × {gain}"),
    "ladder best": (
        "A forward pass: {first} ({before}) → {last} ({name}).",
        "一次前向传播：{first}（{before}）→ {last}（{name}）。",
    ),
    "ladder gain": ("That is {gain} times as fast.", "速度为 {gain} 倍。"),
    "ladder step": (
        "Largest step: {name}, {gain} times as fast as before.",
        "最大的一步：{name}，速度为之前的 {gain} 倍。",
    ),
    "ladder few": (
        "With fewer than three rounds nothing is claimed: take a larger --budget.",
        "不足三轮，不作判断：请增大 --budget。",
    ),
    "ladder one": ("Only one stage could be measured: {name}, {last}.", "仅测得一个阶段：{name}，{last}。"),
    "badge tokens": ("{count} tokens", "{count} 个词元"),
    "badge rounds": ("{count} rounds", "{count} 轮"),
    "badge full": ("all bytes sent", "全部字节"),
    "badge scaled": ("scaled down", "按比例缩减"),
    "badge left out": ("{count} left out", "{count} 项略去"),
}
"""Of the page and of the ladder."""

REMEDIES: Final[dict[str, tuple[str, str, str, str]]] = {
    "transport zmq": (
        "ZeroMQ over ipc://", "bind and connect to `ipc:///run/NAME`, not to `tcp://…`",
        "改用 ipc:// 的 ZeroMQ", "绑定并连接 `ipc:///run/NAME`，不用 `tcp://…`",
    ),
    "transport zmq-tcp": (
        "ZeroMQ over tcp://", "bind and connect to `tcp://127.0.0.1:PORT`",
        "改用 tcp:// 的 ZeroMQ", "绑定并连接 `tcp://127.0.0.1:PORT`",
    ),
    "transport pipe": (
        "Unix sockets", "a Unix socket, such as `multiprocessing.connection` with an address that is a path",
        "改用 Unix 套接字", "使用 Unix 套接字，例如以路径为地址的 `multiprocessing.connection`",
    ),
    "transport shm": (
        "shared memory", "`ipcbench.rpc` or `ipcbench.connect` with `shm`: see docs/use.md",
        "改用共享内存", "使用 `shm` 的 `ipcbench.rpc` 或 `ipcbench.connect`：见 docs/use.md",
    ),
    "out of band": (
        "arrays beside a small head, not inside it",
        "pickle protocol 5 with `buffer_callback`, `send_multipart(…, copy=False)`, or `ipcbench.rpc`",
        "数组与小消息头分开传输", "使用带 `buffer_callback` 的 pickle 5、`send_multipart(…, copy=False)` 或 `ipcbench.rpc`",
    ),
    "rpc": (
        "calls over shared memory, arrays beside a small head",
        "`ipcbench.rpc` over `shm`: both changes at once; see docs/use.md",
        "经共享内存的调用，数组与小消息头分开", "使用 `shm` 的 `ipcbench.rpc`：两项改动合一，见 docs/use.md",
    ),
    "half precision": (
        "half precision", "send bfloat16 or float16; numerics change: compare results before",
        "半精度", "传输 bfloat16 或 float16；数值会变化，请先比较结果",
    ),
    "fewer calls": (
        "fewer and larger calls", "collect small calls of one method, and send them as one",
        "更少更大的调用", "合并同一方法的小调用，一次发送",
    ),
    "stay on one side": (
        "keep intermediate tensors on one side", "have the server keep its reply, and pass a name of it on",
        "中间张量留在一侧", "让服务端保留结果，只传递其名称",
    ),
    "server": (
        "the server's own work", "look there first: no transport can save more than the rest",
        "服务端自身的工作", "请先优化服务端：任何传输方式都无法节省更多",
    ),
    "first call": (
        "warm up before the first call", "make a call at start-up; compile, load and connect there",
        "首次调用前预热", "启动时先调用一次，完成编译、加载与连接",
    ),
    "neighbours": (
        "a core for each process",
        "stop what else runs, pin the processes, or use fewer threads: they were ready to run and had no core",
        "为每个进程留出核心", "停止其他程序、绑定核心或减少线程：这些线程就绪却没有核心",
    ),
}  # fmt: skip
"""Key of a remedy → its name and what to change, in English and in Chinese; other transports have their own name."""


SAYINGS: Final = {
    r"^all of the server's work but serialization is gone$": "服务端除序列化外的工作全部消除",
    r"^([\d,]+) damaged (?:lines or records are|line or record is) left out\.$": r"略去 \1 条损坏的行或记录。",
    r"^the clients do not wait for one another as well$": "各客户端之间并不互相等待",
    r"^the transport still makes its copies; without them, more is saved$": "传输自身的复制仍在；若无复制，节省更多",
    r"^the server is taken to serialize as the client does; the transport still makes its copies; .*$":
        "假定服务端的序列化与客户端相同；传输自身的复制仍在；若无复制，节省更多",
    r"^([\d,]+) calls become one; all work on what is in them stays, on both sides$":
        r"\1 次调用合为一次，双端对其内容的处理均不变",
    r"^([\d,]+) calls become one; all work on what is in them stays, as far as it is known$":
        r"\1 次调用合为一次，对其内容的处理在已知范围内不变",
    r"^([\d,]+) calls become one; .*, and what an empty call takes, which could not be measured$":
        r"\1 次调用合为一次，对其内容的处理在已知范围内不变；空调用的开销未能测得，也计为不变",
    r"^the messages are arrays of float32, and half of their digits are enough$": "消息为 float32 数组，且一半精度已足够",
    r"^the ([\d,]+) replies that are followed by a request about as large are sent back in it$":
        r"\1 个应答之后的请求与之大小相近，且其中送回该应答",
    r"^([\d,]+) calls? of runs before the last one in the log (?:are|is) left out\.$": r"略去日志中最后一次运行之前的 \1 次调用。",
    r"^([\d,]+) calls? failed and (?:are|is) not replayed\.$": r"\1 次调用失败，不重放。",
    r"^([\d,]+) calls? (?:have|has) impossible times or sizes, or more than 1 GiB, .*$":
        r"\1 次调用的时间或大小不可能，或超过 1 GiB，不重放。",
    r"^([\d,]+) calls? (?:have|has) unknown sizes, .*$":
        r"\1 次调用的大小未知，不重放：请在记录时注明。",
    r"^([\d,]+) calls? began before the one before (?:them|it) ended; .*$":
        r"\1 次调用在前一次结束之前开始，重放时紧随其后。",
    r"^([\d,]+) calls? (?:are|is) the inside of .*$": r"\1 次调用在其他调用之内，不再重放。",
    r"^([\d,]+) calls? (?:have|has) no record, .*$": r"\1 次调用没有记录，不重放。",
    r"^Nobody made these calls: .*$": "这些调用未实际发出：只传输消息，不含客户端与服务端的工作；端到端时间至少如此。",
    r"^The client's work between calls is unknown: .*$": "调用之间客户端的工作未知：调用依次紧接。",
    r"^No two clients' calls overlap: .*$": "各客户端的调用从不重叠：它们互相等待，调用之间的时间有多少属于等待未知；重放会将其当作工作。",
    r"^The clients of one server began up to (.+?) apart; .*$":
        r"同一服务端的客户端开始时间最多相差 \1；重放时同时开始，可能互相等待更久。",
    r"^The recorded calls waited up to (.+?) for a core; .*$":
        r"记录中的调用等待核心最多 \1；换用其他传输方式后，等待可能消失或加倍，区间包含两者：在更空闲的机器上记录，区间会更窄。",
    r"\b(\S+) is not installed: (pip install \S+)": r"未安装 \1：`\2`",
    r"msgpack over zmq (tcp|ipc), (float32|bfloat16)": r"msgpack（zmq \1，\2）",
    r"raw multipart over zmq ipc": "原始多段（zmq ipc）",
    r"shared memory, pack and write": "共享内存打包写入",
    r"shared memory, gather": "共享内存聚合写入",
    r"shared memory, in place": "共享内存就地写入",
    r"in place, fused calls": "就地写入并合并调用",
    r"in place, fused, two streams": "就地写入、合并调用、两路并行",
    r"^raw multipart$": "原始多段",
    r"^shm, pack, write$": "shm 打包写入",
    r"^shm, gather$": "shm 聚合",
    r"^shm, in place$": "shm 就地",
    r"^\+ fused calls$": "+ 合并调用",
    r"^\+ two streams$": "+ 两路并行",
    r"^faster$": "更快",
    r"^slower$": "更慢",
    r"^no clear difference$": "无明显差异",
    r"^(.+): a forward pass is (.+) times as fast as with (.+)\.$": r"\1：一次前向传播的速度为\3的 \2 倍。",
    r"^Fewer than (\d+) rounds: .*$": r"不足 \1 轮：没有区间，不作判断。",
    r"^All calls of all (\d+) layers were carried out, with all their bytes\.$": r"全部 \1 层的所有调用均已执行，字节完整。",
    r"^Scaled down: carried out were (\d+) of (\d+) layers \(time in layers × ([\d.,]+)\), embedding and head once":
        r"按比例缩减：执行了 \2 层中的 \1 层（层内时间 × \3），嵌入与输出层各一次",
    r"; and ([\d,]+) of ([\d,]+) tokens: all figures are of these\.$": r"；以及 \2 个词元中的 \1 个：所有数据均据此。",
    r"^Nobody computes\. .*$":
        "不做计算。每个阶段中，发送方在发送处就地填充每个张量一次，接收方读取一次；所需时间计入总时间，并列于表中。"
        "调用之间若有计算，缓存会更冷：没有计算时小消息得益最多。",
    r"^bfloat16 has 8 significant bits: .*$": "bfloat16 有 8 位有效位：字节减半，结果与 float32 不同。",
    r"^Fused, these stay on the server, .*$":
        "合并后，q、k、v、注意力分数与权重及其与 v 的积、gate、up 及其积留在服务端，其间的计算也由服务端完成。",
    r"^Two streams: .*$": "两路并行：两个客户端同时各做一次传播的时间 / 2，是吞吐而非延迟。",
    r"^A single chain of calls: .*$": "单链调用：每次都需要前一次的应答，重叠的收益为 0。",
    r"^(.+): left out after (\d+) rounds: ": r"\1：\2 轮后略去：",
    r"^(.+): left out: ": r"\1：略去：",
    r"(\S+) has (\S+) MiB left, and its messages need at least (\S+) MiB; .*$":
        r"\1 仅余 \2 MiB，消息至少需要 \3 MiB；请释放或扩大（`docker run --shm-size`），或减少词元",
}  # fmt: skip
"""Pattern → Chinese for what reaches a diagnosis as an English sentence; the longer patterns first."""


def word(key: str, language: Language) -> str:
    """Return a text of a diagnosis."""
    return WORDS[key][language == "zh"]


def page_word(key: str, language: Language, **values: object) -> str:
    """Return a text of the page or of the ladder, with its values."""
    return PAGE[key][language == "zh"].format(**values)


def said(text: str, language: Language) -> str:
    """Return a note, remark or name of a stage in the diagnosis's language; names stay as they are."""
    if language == "zh":
        for pattern, words in SAYINGS.items():
            text = re.sub(pattern, words, text)
    return text


def remedy_words(key: str, language: Language) -> tuple[str, str]:
    """Return the name of a remedy, and what to change."""
    if key not in REMEDIES:
        return key, key
    english, change, chinese, chinese_change = REMEDIES[key]
    return (chinese, chinese_change) if language == "zh" else (english, change)

"""Apache Parquet: one row per call, one column per stage; by pyarrow, which is optional."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import IO, Any

from ipcbench.trace.exporters.common import left_out, require
from ipcbench.trace.readers.batch import PARTS
from ipcbench.trace.readers.calls import ROLES, Row
from ipcbench.trace.readers.everything import Source

_GROUP_ROWS = 65_536


def write(source: Source, out: IO[bytes]) -> tuple[str, ...]:
    """Write all calls; null where a call does not have the value or it is unknown. Times in ns, sizes in bytes.

    Raises:
        ModuleNotFoundError: there is no pyarrow.
        StoreError: there is no call.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    stages = source.stages()
    schema = _schema(pa, stages)
    rows = source.in_order(joined=True)
    count = 0
    with pq.ParquetWriter(out, schema, compression="zstd") as writer:
        while group := list(islice(rows, _GROUP_ROWS)):
            count += len(group)
            columns = [list(column) for column in zip(*(_fields(row, stages) for row in group), strict=True)]
            arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
            writer.write_table(pa.Table.from_arrays(arrays, schema=schema))
    require(count, source)
    return left_out(source)


def _schema(pa: Any, stages: list[str]) -> Any:
    names = pa.dictionary(pa.int32(), pa.string())
    return pa.schema([
        ("method", names), ("side", names), ("schema", names), ("peer", names), ("error", names), ("service", names),
        ("host", names), ("pid", pa.int32()), ("tid", pa.int32()), ("trace_id", pa.string()), ("span_id", pa.uint64()),
        ("begin", pa.timestamp("ns", tz="UTC")), ("begin_monotonic_ns", pa.int64()), ("total_ns", pa.int64()),
        ("sent_bytes", pa.int64()), ("recv_bytes", pa.int64()), ("failed", pa.bool_()),
        *((f"{name}_ns", pa.int64()) for name in (*stages, *(f"wait_{part}" for part in PARTS))),
    ])  # fmt: skip


def _fields(row: Row, stages: list[str]) -> Iterator[Any]:
    process = row.process
    times = row.stages_ns
    begin = row.begin_ns if row.begin_ns >= 0 else None
    yield from (row.method, ROLES[row.role], row.schema, row.peer or None, row.error or None, process.service)
    yield from (process.host or None, process.pid or None, process.tid or None, row.trace_id or None)
    yield from (
        row.span if row.trace_id else None,
        row.begin_unix_ns,
        begin,
        row.known_total_ns,
        row.sent_bytes,
        row.recv_bytes,
    )
    yield row.failed
    yield from (times.get(name) for name in stages)
    yield from row.parts_ns

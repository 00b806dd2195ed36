"""The Grafana dashboard: every query of it finds data in a Prometheus that scrapes a trace being recorded."""

from __future__ import annotations

import json
import re
import select
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from tests.end_to_end.conftest import missing
from tests.end_to_end.shell import Shell

DEADLINE_S = 60
VARIABLES = {"$__rate_interval": "4s", "$service": ".*", "$side": "client", "$method": "Matmul"}
APPLICATION = """
from contextlib import suppress
from itertools import count
from ipcbench import trace

recorder = trace.start("trace", service="client", max_bytes="64MiB")
for number in count():
    with suppress(ValueError), recorder.call("Matmul") as call:
        call.serialized(1000)
        call.sent()
        sum(range(20000))
        call.received(2000)
        if number % 4 == 0:
            raise ValueError
"""


def asked(url: str, **parameters: str) -> Any:
    """Return what Prometheus answers with; a query that it cannot parse is an HTTPError."""
    with urllib.request.urlopen(f"{url}?{urlencode(parameters)}", timeout=10) as answer:
        return json.load(answer)["data"]


@pytest.fixture
def prometheus(shell: Shell, tmp_path: Path) -> Iterator[str]:
    """The address of a Prometheus that scrapes the trace of an application."""
    program = shutil.which("prometheus")
    if program is None:
        missing("there is no Prometheus: apt-get install prometheus")
    shell.start_python("-c", APPLICATION)
    metrics = shell.start("trace", "serve-metrics", "trace", "--port", "0")
    assert metrics.stderr is not None
    target = metrics.stderr.readline().strip().removeprefix("http://").removesuffix("/metrics")
    jobs = [{"job_name": "ipcbench", "static_configs": [{"targets": [target]}]}]
    config = {"global": {"scrape_interval": "250ms"}, "scrape_configs": jobs}
    (tmp_path / "prometheus.yml").write_text(json.dumps(config))
    options = ["--config.file=prometheus.yml", "--storage.tsdb.path=data", "--web.listen-address=127.0.0.1:0"]
    with (
        (tmp_path / "said").open("wb") as said,
        subprocess.Popen([program, *options], cwd=tmp_path, stdin=subprocess.DEVNULL, stderr=said) as process,
    ):
        try:
            yield f"http://127.0.0.1:{port_of(process, tmp_path / 'said')}/api/v1"
        finally:
            process.kill()


def port_of(process: subprocess.Popen[bytes], log: Path) -> str:
    """Return the port that it took, once it answers."""
    for _ in until_deadline():
        assert process.poll() is None, log.read_text()
        said = log.read_text()
        port = re.search(r"address=127\.0\.0\.1:([1-9]\d*)", said)
        if port and "ready to receive web requests" in said:
            return port[1]
    pytest.fail(log.read_text())


def until_deadline() -> Iterator[None]:
    end_s = time.monotonic() + DEADLINE_S
    while time.monotonic() < end_s:
        yield
        select.select([], [], [], 0.1)


def test_every_query_of_the_dashboard_finds_data(shell: Shell, prometheus: str) -> None:
    done = shell("trace", "template", "grafana.json")
    assert done.returncode == 0, done.stderr
    board = json.loads(done.stdout)
    queries = {
        (panel["title"], target["refId"]): target["expr"] for panel in board["panels"] for target in panel["targets"]
    }
    assert len(queries) == 8
    found: dict[tuple[str, str], list[Any]] = {}
    for _ in until_deadline():
        for key in queries.keys() - found.keys():
            query = re.sub("|".join(map(re.escape, VARIABLES)), lambda match: VARIABLES[match[0]], queries[key])
            assert "$" not in query
            result = asked(f"{prometheus}/query", query=query)["result"]
            if result and all(float(series["value"][1]) > 0 for series in result):
                found[key] = result
        if found.keys() == queries.keys():
            break
    assert queries.keys() - found.keys() == set()
    for panel in board["panels"]:
        for target in panel["targets"]:
            for series in found[panel["title"], target["refId"]]:
                assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) == series["metric"].keys()
    stages = {series["metric"]["stage"] for series in found["Time in stages, mean per call", "A"]}
    assert stages == {"serialize", "send", "wait", "deserialize"}
    for variable in board["templating"]["list"][1:]:
        metric, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["query"]["query"]).groups()
        assert len(asked(f"{prometheus}/label/{label}/values", **{"match[]": metric})) == 1
        assert variable["name"] == label

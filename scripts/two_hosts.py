"""Serve from two hosts and kill one: .venv-vllm/bin/python scripts/two_hosts.py [MODEL].

Both hosts are on this machine: two servers of scripts/serve.py, each with a mesh of its own. A stand-in for a load
balancer sends each request to the healthy host with the fewest open requests. When a host is lost, its open requests
are sent again. Three rounds of the same greedy requests: to one host, over both, and over both while one is killed.
The texts of all rounds must be equal. At the end the other host gets SIGTERM while it answers four streams.
Exit status: 1 if texts differ, a request has no answer, a mesh stays open or a process survives.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx

HERE = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(HERE))
from models.demos.qwen25_7b.serving.vllm_process import session_processes  # noqa: E402

SMALL = HERE / "models/demos/qwen25_7b/reference/small"
PORTS = (8121, 8122)
REQUESTS = 64
KILL_AFTER = 16  # answers of the last round
STREAMS = 4
# Short starts on a golden mesh. A server for users warms up, and replays traces.
OPTIONS = [
    "--max-model-len", "512", "--max-num-seqs", "16", "--host", "127.0.0.1",
    "--additional-config", '{"tt": {"trace_mode": "none", "enable_model_warmup": false}}',
]  # fmt: skip
PATIENCE = 600.0  # seconds for a start or an answer


class Host:
    """One server, and what a load balancer knows of it."""

    def __init__(self, port: int, model: str, logs: Path):
        self.port = port
        self.log = logs / f"host-{port}.log"
        self.url = f"http://127.0.0.1:{port}"
        self.healthy = False
        self.open = 0  # requests on their way
        self.answers = 0  # that the balancer got from it
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(HERE / "scripts/serve.py"), model, "--port", str(port), *OPTIONS],
                stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip

    async def check(self, http: httpx.AsyncClient) -> None:
        try:
            healthy = (await http.get(f"{self.url}/health", timeout=5)).status_code == 200
        except httpx.TransportError:
            healthy = False
        if healthy != self.healthy:
            print(f"{self.url} is {'healthy' if healthy else 'not healthy'}", flush=True)
        self.healthy = healthy

    async def answered(self, http: httpx.AsyncClient) -> int:
        """Return how many requests this host has answered, from its metrics."""
        lines = (await http.get(f"{self.url}/metrics")).text.splitlines()
        counts = [line for line in lines if line.startswith("vllm:request_success_total")]
        return round(sum(float(line.rpartition(" ")[2]) for line in counts))

    def sessions(self) -> list[int]:
        """Return the session of the supervisor, and that of its server."""
        supervisor = self.process.pid
        children = Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text().split()
        return [supervisor, *map(int, children)]

    def kill(self) -> None:
        """End all processes of the host at once, as a power cut does."""
        for session in self.sessions():
            os.killpg(session, signal.SIGKILL)
        self.process.wait()

    def stop(self) -> int:
        """Send SIGTERM and return the exit status."""
        self.process.terminate()
        return self.process.wait()


class Balancer:
    def __init__(self, hosts: list[Host], http: httpx.AsyncClient):
        self.hosts = hosts
        self.http = http
        self.sent_again = 0

    async def answer(self, body: dict) -> str:
        while True:
            healthy = [host for host in self.hosts if host.healthy]
            if not healthy:
                raise RuntimeError("no host is healthy")
            host = min(healthy, key=lambda host: host.open)
            host.open += 1
            try:
                response = await self.http.post(f"{host.url}/v1/completions", json=body)
                response.raise_for_status()
                host.answers += 1
                return response.json()["choices"][0]["text"]
            except httpx.TransportError:
                self.sent_again += 1
                await host.check(self.http)
            finally:
                host.open -= 1

    async def watch(self) -> None:
        """Ask each host for its health once a second."""
        while True:
            for host in self.hosts:
                await host.check(self.http)
            await asyncio.sleep(1)


async def round_of(name: str, balancer: Balancer, bodies: list[dict], victim=None) -> list[str]:
    """Send all requests at once; return their texts. victim: a host that is killed after some answers."""
    before = {host: await host.answered(balancer.http) for host in balancer.hosts}
    for host in balancer.hosts:
        host.answers = 0
    began, answers = time.perf_counter(), 0
    balancer.sent_again = 0

    async def one(body: dict) -> str:
        nonlocal answers
        text = await balancer.answer(body)
        answers += 1
        if victim is not None and answers == KILL_AFTER:
            print(f"killing {victim.url}, which has {victim.open} open requests", flush=True)
            victim.kill()
        return text

    texts = await asyncio.gather(*map(one, bodies))
    seconds = time.perf_counter() - began
    counts = []
    for host in balancer.hosts:
        # A killed host has no metrics.
        there = host is not victim
        count = await host.answered(balancer.http) - before[host] if there else host.answers
        counts.append(f"{host.url} {count}")
    counted = f"{', '.join(counts)}; {balancer.sent_again} sent again"
    print(f"{name}: {len(texts)} answers in {seconds:.0f} s: {counted}", flush=True)
    return texts


async def stop_with_streams(host: Host, http: httpx.AsyncClient, body: dict) -> bool:
    """Stop a host that answers streams. Return whether its mesh was closed and no process survived."""
    begun = asyncio.Barrier(STREAMS + 1)

    async def stream() -> str:
        reason, first = "none", True
        long = body | dict(stream=True, max_tokens=400, ignore_eos=True)
        async with http.stream("POST", f"{host.url}/v1/completions", json=long) as response:
            async for line in response.aiter_lines():
                if line.startswith("data: {"):
                    reason = json.loads(line[6:])["choices"][0]["finish_reason"]
                if first and line:
                    first = False
                    await begun.wait()
        return reason

    streams = [asyncio.create_task(stream()) for _ in range(STREAMS)]
    await begun.wait()
    sessions = host.sessions()
    began = time.monotonic()
    status = await asyncio.to_thread(host.stop)
    seconds = time.monotonic() - began
    ends = [f"{end}" for end in await asyncio.gather(*streams, return_exceptions=True)]
    print(
        f"SIGTERM with {STREAMS} open streams: status {status} after {seconds:.1f} s; streams ended: {ends}"
    )
    lines = host.log.read_text(errors="replace").splitlines()
    closed = [line for line in lines if "The mesh is closed" in line]
    survivors = [title for session in sessions for _, title in session_processes(session)]
    print("\n".join(closed) or "the mesh was NOT closed")
    print(f"processes left: {survivors or 'none'}")
    return bool(closed) and not survivors and status == 0


async def serve(hosts: list[Host]) -> int:
    async with httpx.AsyncClient(timeout=PATIENCE) as http:
        began = time.monotonic()
        while not all(host.healthy for host in hosts):
            for host in hosts:
                await host.check(http)
                if host.process.poll() is not None or time.monotonic() - began > PATIENCE:
                    print(f"{host.url} did not start: {host.log}")
                    return 1
            await asyncio.sleep(1)
        print(f"both hosts are ready after {time.monotonic() - began:.0f} s", flush=True)
        model = (await http.get(f"{hosts[0].url}/v1/models")).json()["data"][0]["id"]
        bodies = [
            dict(model=model, prompt=f"Count from {i} to {i + 9}.", max_tokens=24, temperature=0)
            for i in range(REQUESTS)
        ]
        alone = await round_of("one host", Balancer(hosts[:1], http), bodies)
        balancer = Balancer(hosts, http)
        watching = asyncio.create_task(balancer.watch())
        both = await round_of("two hosts", balancer, bodies)
        killed = await round_of("one killed", balancer, bodies, victim=hosts[1])
        watching.cancel()
        stopped = await stop_with_streams(hosts[0], http, bodies[0])
    equal = alone == both == killed
    print(f"the texts of the three rounds are {'equal' if equal else 'NOT equal'}")
    return 0 if equal and stopped else 1


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))  # the hosts are stopped, too
    model = sys.argv[1] if len(sys.argv) > 1 else str(SMALL)
    logs = Path(tempfile.mkdtemp(prefix="two-hosts-"))
    print(f"logs: {logs}", flush=True)
    hosts = [Host(port, model, logs) for port in PORTS]
    try:
        return asyncio.run(serve(hosts))
    finally:
        for host in hosts:
            if host.process.poll() is None:
                host.stop()


if __name__ == "__main__":
    sys.exit(main())

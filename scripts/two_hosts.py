"""Serve from two hosts and kill one: .venv-vllm/bin/python scripts/two_hosts.py [MODEL].

Both hosts are on this machine: two servers of scripts/serve.py, each with a mesh of its own. A stand-in for a load
balancer sends each request to the healthy host with the fewest open requests. When a host is lost, its open requests
are sent again. Three rounds of the same greedy requests: to one host, over both, and over both while one is killed.
The texts of all rounds must be equal. Exit status: 1 if they are not, or if a request has no answer.
"""

import asyncio
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

    def kill(self) -> None:
        """End all processes of the host at once, as a power cut does."""
        supervisor = self.process.pid
        children = Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text().split()
        pids = [pid for child in children for pid, _ in session_processes(int(child))]
        for pid in (supervisor, *pids):
            os.kill(pid, signal.SIGKILL)
        self.process.wait()


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
    began, answers = time.perf_counter(), 0
    balancer.sent_again = 0

    async def one(body: dict) -> str:
        nonlocal answers
        text = await balancer.answer(body)
        answers += 1
        if victim is not None and answers == KILL_AFTER:
            before[victim] = await victim.answered(balancer.http) - before[victim]
            print(f"killing {victim.url}, which has {victim.open} open requests", flush=True)
            victim.kill()
        return text

    texts = await asyncio.gather(*map(one, bodies))
    seconds = time.perf_counter() - began
    counts = [
        f"{host.url} {before[host] if host is victim else await host.answered(balancer.http) - before[host]}"
        for host in balancer.hosts
    ]
    print(
        f"{name}: {len(texts)} answers in {seconds:.0f} s: {', '.join(counts)}; {balancer.sent_again} sent again",
        flush=True,
    )
    return texts


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
    equal = alone == both == killed
    print(f"the texts of the three rounds are {'equal' if equal else 'NOT equal'}")
    return 0 if equal else 1


def main() -> int:
    model = sys.argv[1] if len(sys.argv) > 1 else str(SMALL)
    logs = Path(tempfile.mkdtemp(prefix="two-hosts-"))
    print(f"logs: {logs}", flush=True)
    hosts = [Host(port, model, logs) for port in PORTS]
    try:
        return asyncio.run(serve(hosts))
    finally:
        for host in hosts:
            if host.process.poll() is None:
                host.process.terminate()
                print(f"{host.url} stopped with status {host.process.wait()}")


if __name__ == "__main__":
    sys.exit(main())

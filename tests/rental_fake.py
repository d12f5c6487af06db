"""A loopback double of the provider's REST API (documented shapes), with faults that are planted in it.

It rents out one ssh server, or nothing that can be reached, and remembers everything that was ever
made, asked and destroyed. `onstart` scripts are executed with what the provider gives a machine
(`CONTAINER_ID`, `CONTAINER_API_KEY`), so that a machine's own deadline really ends it.
"""

import json
import os
import re
import subprocess
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

KEY = "vast-canary-0123456789abcdef"
LOST, NOT_SENT, TWICE, GARBAGE = "lost", "not sent", "twice", "garbage"
"""Faults: done and no answer · not done and no answer · done two times · done, answered with no JSON."""


def offer(number: int, **changes: Any) -> dict[str, Any]:
    """Return a row as a search answers it."""
    return {
        "id": number, "ask_contract_id": number, "machine_id": 1000 + number,
        "gpu_name": "RTX 4090", "num_gpus": 4, "gpu_ram": 24564, "cpu_ram": 128000,
        "cpu_cores": 64, "cpu_cores_effective": 32.0, "disk_space": 500.0, "reliability2": 0.998,
        "inet_down": 900.5, "inet_up": 800.0, "dph_total": 1.25, "dph_base": 1.2, "min_bid": 0.6,
        "storage_cost": 0.15, "geolocation": "Norway, NO", "rentable": True, "rented": False,
        "verification": "verified", "duration": 864000.0, "cuda_max_good": 12.4, **changes,
    }  # fmt: skip


class RentalFake:
    """The provider's state."""

    def __init__(self) -> None:
        self.offers: list[dict[str, Any]] = [offer(1)]
        self.ssh = ("127.0.0.1", 9)
        self.fleet: list[tuple[str, int]] = []
        """Addresses of the next instances, one each; those after them get `ssh`."""
        self.boot: list[str | None] = ["running"]
        """What `actual_status` says at each look, the last one from then on."""
        self.exclusive = False
        """An offer is no offer any more once it was rented."""
        self.hidden_looks = 0
        """Lists from which a new instance is missing yet."""
        self.undying: set[int] = set()
        """Instances that stay although their destruction is answered with success."""
        self.undying_all = False
        self.instances: dict[int, dict[str, Any]] = {}
        self.made: list[int] = []
        self.destroyed: list[int] = []
        self.requests: list[tuple[str, str, Any]] = []
        self.keys: set[str] = set()
        self.on_request: Callable[[str, str], None] = lambda _method, _path: None
        self.runs_onstart = False
        self.path_first = ""
        """Folder of programs that `onstart` finds first."""
        self.url = ""
        self._faults: dict[str, deque[Any]] = defaultdict(deque)
        self._always: dict[str, Any] = {}
        self._lock = threading.RLock()
        self._started: list[subprocess.Popen[bytes]] = []

    def fault(self, method: str, *what: Any, always: Any = None) -> None:
        """Plant faults for the next requests of a method: a status, or one of the words above."""
        self._faults[method] += what
        if always is not None:
            self._always[method] = always

    def heal(self) -> None:
        self._faults.clear()
        self._always.clear()

    def next_fault(self, method: str) -> Any:
        with self._lock:
            waiting = self._faults[method]
            return waiting.popleft() if waiting else self._always.get(method)

    def carry_out(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        with self._lock:
            if (method, path) == ("POST", "/bundles/"):
                return 200, {"offers": [dict(one) for one in self.offers]}
            if (method, path) == ("GET", "/instances/"):
                return 200, {"instances": self._listed()}
            found = re.fullmatch(r"/(asks|instances)/(\d+)/", path)
            if found and (method, found[1]) == ("PUT", "asks"):
                return self._create(int(found[2]), body)
            if found and (method, found[1]) == ("DELETE", "instances"):
                return self._destroy(int(found[2]))
            return 404, {"success": False, "error": "not_found", "msg": path}

    def _create(self, ask: int, body: dict[str, Any]) -> tuple[int, Any]:
        wanted = next((one for one in self.offers if one["id"] == ask), None)
        if wanted is None:
            return 404, {"success": False, "error": "no_such_ask", "msg": f"Ask {ask} not found"}
        if self.exclusive:
            self.offers.remove(wanted)
        number = 7000 + len(self.made)
        self.made.append(number)
        host, port = self.fleet.pop(0) if self.fleet else self.ssh
        self.instances[number] = {
            "id": number, "label": body.get("label"), "looks": 0, "hidden": self.hidden_looks,
            "dph_total": wanted["dph_total"] if body.get("price") is None else body["price"],
            "ssh_host": host, "ssh_port": port, "machine_id": wanted["machine_id"],
            "image": body["image"], "disk": body["disk"], "onstart": body.get("onstart"),
            "start_date": 1.7e9, "status_msg": None, "intended_status": "running",
        }  # fmt: skip
        if self.runs_onstart and body.get("onstart"):
            variables = {
                "PATH": f"{self.path_first}:{os.environ['PATH']}", "CONTAINER_ID": str(number),
                "CONTAINER_API_KEY": KEY, "VAST_FAKE_URL": self.url,
            }  # fmt: skip
            self._started.append(
                subprocess.Popen(["sh", "-c", body["onstart"]], env=variables, close_fds=True)
            )
        return 200, {"success": True, "new_contract": number}

    def _destroy(self, number: int) -> tuple[int, Any]:
        if number not in self.instances:
            return 404, {"success": False, "error": "no_such_instance", "msg": "not found"}
        if not self.undying_all and number not in self.undying:
            del self.instances[number]
            self.destroyed.append(number)
        return 200, {"success": True}

    def _listed(self) -> list[dict[str, Any]]:
        rows = []
        for one in self.instances.values():
            if one["hidden"] > 0:
                one["hidden"] -= 1
                continue
            status = one.get("ended") or self.boot[min(one["looks"], len(self.boot) - 1)]
            one["looks"] += 1
            rows.append({**one, "actual_status": status})
        # Another one of the account, which is none of Quark's; and a machine with odd fields.
        return [
            {"id": 1, "label": None, "actual_status": "running", "ports": None},
            {"id": 2, "label": "quark", "actual_status": None, "dph_total": "?", "ports": []},
            *rows,
        ]

    def end(self, number: int, status: str = "exited") -> None:
        """A machine ends by itself: it stays in the list, and costs money, until it is destroyed."""
        with self._lock:
            self.instances[number]["ended"] = status

    def ours(self) -> list[int]:
        with self._lock:
            return sorted(self.instances)

    def close(self) -> None:
        for process in self._started:
            if process.poll() is None:
                process.kill()
            process.wait()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = 1 << 16  # an answer in one piece, or its end waits for the client's acknowledgement
    fake: RentalFake

    def log_message(self, *_arguments: Any) -> None:
        """Say nothing."""

    def _serve(self) -> None:
        fake, method = self.fake, self.command
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else None
        path = self.path.removeprefix("/api/v0")
        key = self.headers.get("Authorization", "").removeprefix("Bearer ")
        fake.keys.add(key)
        fake.requests.append((method, path, body))
        fake.on_request(method, path)
        if key != KEY or path == self.path:
            return self._reply(401, {"success": False, "error": "auth", "msg": f"bad key {key}"})
        fault = fake.next_fault(method)
        if fault == NOT_SENT:
            return self._drop()
        if isinstance(fault, int):
            return self._reply(fault, {"success": False, "error": "planted", "msg": "planted"})
        status, answer = fake.carry_out(method, path, body)
        if fault == TWICE:
            status, answer = fake.carry_out(method, path, body)
        if fault == LOST:
            return self._drop()
        if fault == GARBAGE:
            return self._reply(200, None, raw=b"<html>proxy</html>")
        return self._reply(status, answer)

    def _reply(self, status: int, answer: Any, raw: bytes | None = None) -> None:
        data = raw if raw is not None else json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _drop(self) -> None:
        self.close_connection = True
        self.connection.close()

    do_GET = do_POST = do_PUT = do_DELETE = _serve  # noqa: N815 - names of http.server


@contextmanager
def rental_fake() -> Iterator[RentalFake]:
    """Enter with a provider that answers on loopback."""
    fake = RentalFake()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"fake": fake}))
    fake.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield fake
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
        fake.close()

"""A Sprites service of our own: the public HTTP and WebSocket API over real processes, each sandbox a directory here.

What it does not have is the isolation: a sandbox's home is its directory, and paths outside of that are put below it.
It fails where a test wants it to: `refuse`, `slow_create_s`, `cut`, `pause`, `cool`, `lose`.
"""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Self

from aiohttp import WSMsgType, web

from leftovers import processes_naming

TOKEN = "org/token-id/secret"
STDIN, STDOUT, STDERR, EXIT, STDIN_END = range(5)
RESTART_S = 0.2
PIPE = asyncio.subprocess.PIPE


class Service:
    """A program that is started again whenever it ends, until it is stopped."""

    def __init__(self, box: "Box", name: str, spec: Mapping[str, Any]) -> None:
        self.box, self.name, self.spec = box, name, spec
        self.starts = 0
        self._keeping: asyncio.Task[None] | None = None
        self._process: asyncio.subprocess.Process | None = None

    def start(self) -> None:
        if self._keeping is None:
            self._keeping = asyncio.create_task(self._keep())

    async def _keep(self) -> None:
        while True:
            self.starts += 1
            command = [self.spec["cmd"], *(self.spec.get("args") or [])]
            self._process = await self.box.spawn(command, self.spec.get("env") or {}, self.spec.get("dir") or "")
            await self._process.wait()
            await asyncio.sleep(RESTART_S)

    async def stop(self, number: int = signal.SIGTERM) -> None:
        keeping, self._keeping = self._keeping, None
        if keeping is None:
            return
        keeping.cancel()
        await asyncio.wait([keeping])
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)
            try:
                async with asyncio.timeout(15):
                    await self._process.wait()
            except TimeoutError:
                self._process.kill()
                await self._process.wait()

    def view(self) -> dict[str, Any]:
        running = self._process is not None and self._process.returncode is None
        state = {"name": self.name, "status": "running" if running else "stopped", "restart_count": self.starts - 1}
        return {"name": self.name, **self.spec, "state": state}


class Box:
    """One sandbox."""

    def __init__(self, directory: Path, name: str, labels: list[str]) -> None:
        self.directory, self.name, self.labels = directory, name, labels
        self.status = "running"
        self.services: dict[str, Service] = {}
        self.sockets: set[web.WebSocketResponse] = set()
        directory.mkdir(parents=True)

    async def spawn(
        self, command: list[str], env: Mapping[str, str], where: str, *, pipe: int = asyncio.subprocess.DEVNULL
    ) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *command,
            cwd=self.path(where or "."),
            # Given variables take the place of the default ones, as in the real service.
            env={**(env or {"PATH": f"{sys.base_prefix}/bin:{os.environ['PATH']}"}), "HOME": str(self.directory)},
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            start_new_session=True,
        )

    def path(self, text: str) -> Path:
        path = Path(text)
        inside = path.is_absolute() and path.is_relative_to(self.directory)
        return path if inside else self.directory / text.lstrip("/")

    def views(self) -> list[dict[str, Any]]:
        """Its services, as they are told."""
        return [service.view() for service in self.services.values()]

    def pids(self) -> list[int]:
        return [pid for pid in processes_naming(str(self.directory)) if pid != os.getpid()]

    def signal(self, number: int) -> None:
        for pid in self.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def wake(self) -> None:
        """A request wakes it up: a paused one goes on, a cold one has its services started again."""
        if self.status == "warm":
            self.signal(signal.SIGCONT)
        elif self.status == "cold":
            for service in self.services.values():
                service.start()
        self.status = "running"

    async def cut(self) -> None:
        for socket in list(self.sockets):
            transport = socket._req.transport if socket._req else None
            if transport is not None:
                transport.abort()

    async def kill(self) -> None:
        """Everything dies at once."""
        for service in self.services.values():
            await service.stop(signal.SIGKILL)
        while self.pids():
            self.signal(signal.SIGKILL)
            await asyncio.sleep(0.02)


class FakeSprites:
    """Serves on a port of loopback until the block ends; nothing that ran in its sandboxes is left then."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.boxes: dict[str, Box] = {}
        self.requests: list[str] = []
        self.slow_create_s = 0.0
        self.url = ""
        self._refusals: list[tuple[int, dict[str, str], str]] = []
        self._made = 0

    # ---- what a test does to it

    def refuse(self, *, times: int, status: int = 429, after: str = "0.1", path: str = "") -> None:
        """The next requests to a path that ends so, or to any, get this status."""
        self._refusals += [(status, {"Retry-After": after} if after else {}, path)] * times

    def forgive(self) -> None:
        """Everything is answered again."""
        self._refusals.clear()

    async def cool(self, name: str) -> None:
        """Long idle: memory is lost, and whatever ran; a later request starts the services again."""
        box = self.boxes[name]
        await box.cut()
        await box.kill()
        box.status = "cold"

    async def pause(self, name: str) -> None:
        """Idle: everything stands still, and all connections are cut."""
        box = self.boxes[name]
        box.signal(signal.SIGSTOP)
        await box.cut()
        box.status = "warm"

    async def lose(self, name: str) -> None:
        """It expired."""
        box = self.boxes.pop(name)
        await box.cut()
        await box.kill()
        shutil.rmtree(box.directory)

    # ---- the service

    async def __aenter__(self) -> Self:
        app = web.Application(middlewares=[self._middleware], client_max_size=1 << 30)
        box = "/v1/sprites/{name}"
        app.add_routes(
            [
                web.post("/v1/sprites", self._create),
                web.get("/v1/sprites", self._list),
                web.get(box, self._get),
                web.put(box, self._get),
                web.delete(box, self._delete),
                web.get(f"{box}/exec", self._exec),
                web.post(f"{box}/exec/{{id}}/kill", self._nothing),
                web.get(f"{box}/proxy", self._proxy),
                web.get(f"{box}/fs/read", self._read),
                web.put(f"{box}/fs/write", self._write),
                web.get(f"{box}/fs/list", self._listing),
                web.delete(f"{box}/fs/delete", self._remove),
                web.get(f"{box}/services", self._services),
                web.get(f"{box}/services/{{service}}", self._service),
                web.put(f"{box}/services/{{service}}", self._put_service),
                web.post(f"{box}/services/{{service}}/start", self._start_service),
                web.post(f"{box}/services/{{service}}/stop", self._stop_service),
                web.delete(f"{box}/services/{{service}}", self._delete_service),
            ]
        )
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        for box in self.boxes.values():
            box.signal(signal.SIGCONT)
            await box.cut()
            await box.kill()
        await self._runner.cleanup()

    @web.middleware
    async def _middleware(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        self.requests.append(f"{request.method} {request.path}")
        if request.headers.get("Authorization") != f"Bearer {TOKEN}":
            return _error(401, "unauthorized")
        for refusal in self._refusals:
            status, headers, path = refusal
            if request.path.endswith(path):
                self._refusals.remove(refusal)
                return _error(status, "sprite_creation_rate_limited", headers)
        name = request.match_info.get("name")
        if name is not None and name not in self.boxes:
            return _error(404, "sprite_not_found")
        if name is not None and request.path.count("/") > 3:
            self.boxes[name].wake()
        return await handler(request)

    def _box(self, request: web.Request) -> Box:
        return self.boxes[request.match_info["name"]]

    def _view(self, box: Box) -> dict[str, Any]:
        stamp = "2026-11-01T00:00:00Z"
        return {
            "id": f"sprite-{box.name}",
            "name": box.name,
            "organization": "org",
            "status": box.status,
            "url": f"https://{box.name}.sprites.invalid",
            "url_settings": {"auth": "sprite"},
            "created_at": stamp,
            "updated_at": stamp,
            "labels": box.labels,
        }

    async def _create(self, request: web.Request) -> web.Response:
        body = await request.json()
        await asyncio.sleep(self.slow_create_s)
        if body["name"] in self.boxes:
            return _error(400, "name_taken")
        self._made += 1
        box = Box(self._directory / f"{self._made}-box", body["name"], body.get("labels") or [])
        self.boxes[box.name] = box
        return web.json_response(self._view(box), status=201)

    async def _list(self, request: web.Request) -> web.Response:
        prefix = request.query.get("prefix", "")
        found = [self._view(box) for name, box in self.boxes.items() if name.startswith(prefix)]
        return web.json_response({"sprites": found, "has_more": False, "next_continuation_token": None})

    async def _get(self, request: web.Request) -> web.Response:
        return web.json_response(self._view(self._box(request)))

    async def _delete(self, request: web.Request) -> web.Response:
        await self.lose(request.match_info["name"])
        return web.Response(status=204)

    async def _nothing(self, _request: web.Request) -> web.Response:
        return web.Response(status=410)

    async def _exec(self, request: web.Request) -> web.StreamResponse:
        box, query = self._box(request), request.query
        socket = await self._accept(request)
        env = dict(pair.split("=", 1) for pair in query.getall("env", []))
        process = await box.spawn(query.getall("cmd"), env, query.get("dir", ""), pipe=PIPE)
        await socket.send_json({"type": "session_info", "session_id": str(process.pid), "tty": False})

        async def forward(stream: asyncio.StreamReader | None, number: int) -> None:
            while stream is not None and (data := await stream.read(1 << 16)):
                await socket.send_bytes(bytes([number]) + data)

        async def feed() -> None:
            assert process.stdin is not None
            async for message in socket:
                if message.type is WSMsgType.BINARY and message.data[:1] == bytes([STDIN]):
                    process.stdin.write(message.data[1:])
                elif message.type is WSMsgType.BINARY and message.data[:1] == bytes([STDIN_END]):
                    process.stdin.close()

        feeding = asyncio.create_task(feed())
        try:
            await asyncio.gather(forward(process.stdout, STDOUT), forward(process.stderr, STDERR))
            code = await process.wait()
            await socket.send_json({"type": "exit", "exit_code": code % 256})
            await socket.send_bytes(bytes([EXIT, code % 256]))
            await socket.close()
        except ConnectionError:
            process.kill()
        finally:
            feeding.cancel()
            box.sockets.discard(socket)
        return socket

    async def _proxy(self, request: web.Request) -> web.StreamResponse:
        socket = await self._accept(request)
        wanted = await socket.receive_json()
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", wanted["port"])
        except OSError as error:
            await socket.send_json({"status": "error", "error": str(error)})
            await socket.close()
            return socket
        await socket.send_json({"status": "connected", "target": f"10.0.0.1:{wanted['port']}"})

        async def back() -> None:
            with contextlib.suppress(ConnectionError):
                while data := await reader.read(1 << 16):
                    await socket.send_bytes(data)
                await socket.close()

        backing = asyncio.create_task(back())
        try:
            async for message in socket:
                if message.type is WSMsgType.BINARY:
                    writer.write(message.data)
                    await writer.drain()
        except ConnectionError:
            pass
        finally:
            backing.cancel()
            writer.close()
            self._box_of(request, socket)
        return socket

    def _box_of(self, request: web.Request, socket: web.WebSocketResponse) -> None:
        box = self.boxes.get(request.match_info["name"])
        if box is not None:
            box.sockets.discard(socket)

    async def _accept(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        self._box(request).sockets.add(socket)
        return socket

    async def _read(self, request: web.Request) -> web.StreamResponse:
        path = self._box(request).path(request.query["path"])
        return web.FileResponse(path) if path.is_file() else _error(404, "not_found")

    async def _write(self, request: web.Request) -> web.Response:
        path = self._box(request).path(request.query["path"])
        if request.query.get("mkdirParents") == "true":
            path.parent.mkdir(parents=True, exist_ok=True)
        data = await request.read()
        path.write_bytes(data)
        mode = request.query.get("mode", "0644")
        path.chmod(int(mode, 8))
        return web.json_response({"path": str(path), "size": len(data), "mode": mode})

    async def _listing(self, request: web.Request) -> web.Response:
        path = self._box(request).path(request.query["path"])
        if not path.exists():
            return _error(404, "not_found")
        entries = [_entry(one) for one in (path.iterdir() if path.is_dir() else [path])]
        return web.json_response({"path": str(path), "count": len(entries), "entries": entries})

    async def _remove(self, request: web.Request) -> web.Response:
        path = self._box(request).path(request.query["path"])
        shutil.rmtree(path) if path.is_dir() else path.unlink()
        return web.json_response({"deleted": [str(path)], "count": 1})

    async def _services(self, request: web.Request) -> web.Response:
        return web.json_response(self._box(request).views())

    async def _service(self, request: web.Request) -> web.Response:
        service = self._box(request).services.get(request.match_info["service"])
        return web.json_response(service.view()) if service else _error(404, "service_not_found")

    async def _put_service(self, request: web.Request) -> web.Response:
        box, name = self._box(request), request.match_info["service"]
        if name in box.services:
            await box.services[name].stop()
        box.services[name] = Service(box, name, await request.json())
        box.services[name].start()
        return _events({"type": "started"}, {"type": "complete"})

    async def _start_service(self, request: web.Request) -> web.Response:
        service = self._box(request).services.get(request.match_info["service"])
        if service is None:
            return _error(404, "service_not_found")
        service.start()
        return _events({"type": "started"}, {"type": "complete"})

    async def _stop_service(self, request: web.Request) -> web.Response:
        service = self._box(request).services.get(request.match_info["service"])
        if service is None:
            return _error(404, "service_not_found")
        await service.stop()
        return _events({"type": "stopping"}, {"type": "stopped"}, {"type": "complete"})

    async def _delete_service(self, request: web.Request) -> web.Response:
        service = self._box(request).services.pop(request.match_info["service"], None)
        if service is None:
            return _error(404, "service_not_found")
        await service.stop()
        return web.Response(status=204)


def _entry(path: Path) -> dict[str, Any]:
    told = path.lstat()
    return {
        "name": path.name,
        "path": str(path),
        "type": "directory" if path.is_dir() else "file",
        "size": told.st_size,
        "mode": f"{told.st_mode & 0o777:04o}",
        "modTime": "2026-11-01T00:00:00Z",
        "isDir": path.is_dir(),
    }


def _events(*events: dict[str, Any]) -> web.Response:
    text = "".join(json.dumps({**event, "timestamp": 0}) + "\n" for event in events)
    return web.Response(text=text, content_type="application/x-ndjson")


def _error(status: int, code: str, headers: Mapping[str, str] | None = None) -> web.Response:
    return web.json_response({"error": code, "message": code}, status=status, headers=headers)

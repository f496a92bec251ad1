"""The way to agentctl in a container on another host."""

from kandev.runtimes.base import Instance
from kandev.runtimes.container_files import port_inside
from kandev.runtimes.remote_container import RELAY, socket_inside
from kandev.runtimes.remote_engine import RemoteEngine
from kandev.runtimes.remote_links import SshLink, TlsLink
from kandev.runtimes.socket_tunnel import Pipe, SocketTunnel

__all__ = ["ContainerDoor"]


class ContainerDoor:
    """The way to one instance: its published port, which may change, or a program in its container."""

    def __init__(self, engine: RemoteEngine, link: SshLink | TlsLink, instance: Instance, *, publishes: bool) -> None:
        self._engine = engine
        self._link = link
        self._instance = instance
        self._publishes = publishes
        self._port = 0
        self._tunnel = SocketTunnel(instance.agentctl_url.removeprefix("unix:"), self._open_pipe)
        self.gone = False
        """True once the engine said that the container does not run."""

    async def open(self) -> None:
        """Listen at the instance's address."""
        await self._tunnel.open()

    async def aclose(self) -> None:
        """End all connections."""
        await self._tunnel.aclose()

    async def _open_pipe(self) -> Pipe:
        if self._port:
            try:
                return await self._link.open_port(self._port)
            except OSError:  # a container that was started again has another port
                self._port = 0
        container = await self._engine.find(self._instance.container_id)
        self.gone = container is None or not container.running
        if container is None or self.gone:
            raise ConnectionRefusedError("the container does not run")
        if not self._publishes:
            path = socket_inside(self._instance.instance_id)
            return await self._engine.run_piped(container, ["python3", "-I", "-S", "-c", RELAY, path])
        port = container.ports.get(port_inside(), 0)
        pipe = await self._link.open_port(port)
        self._port = port
        return pipe

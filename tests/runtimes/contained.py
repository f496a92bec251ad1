"""A session of the demo agent in a container, driven as any client drives it."""

from typing import Any, Protocol, Self

from backend import Backend
from runtimes.demo_session import DemoSession
from wire_client import Client


class Engine(Protocol):
    """An engine that a test looks at, with the image of its sessions."""

    image: str

    def docker(self, *arguments: str) -> str:
        """What a command of the docker program printed."""
        ...


class Contained(DemoSession):
    """A session of the demo agent in a container."""

    def __init__(self, backend: Backend, engine: Engine, client: Client, created: Any) -> None:
        super().__init__(client, created)
        self.backend, self.engine = backend, engine

    @classmethod
    async def create(
        cls, backend: Backend, engine: Engine, client: Client, *, runtime: str = "docker", **more: Any
    ) -> Self:
        session = cls(backend, engine, client, await cls.task(client, runtime, **more))
        await session.start()
        return session

    def stages(self) -> list[str]:
        """The stages of its starts that this client was told of."""
        told = self.client.seen("session.resume.progress")
        return [payload["stage"] for payload in told if payload["session_id"] == self.id]

    @property
    def container(self) -> str:
        """The id of its one container."""
        return self.engine.docker("ps", "-aq", "--no-trunc", "--filter", f"label=kandev.session_id={self.id}")


def leave_container(session: Contained) -> str:
    """Makes what a session of the same home leaves that is gone, a container and a volume of one name; that name."""
    home = session.engine.docker("inspect", "-f", '{{index .Config.Labels "kandev.home"}}', session.container)
    name = f"kandev-{home[:8]}-gone"
    labels = ("--label", "kandev.managed=true", "--label", f"kandev.home={home}")
    session.engine.docker("volume", "create", *labels, name)
    own = (*labels, "--label", "kandev.session_id=gone", "--name", name, "-v", f"{name}:/kandev")
    session.engine.docker("run", "-d", *own, session.engine.image, "sleep", "600")
    return name


async def doctor(backend: Backend, *arguments: str) -> list[Any]:
    """What `kandev doctor` says of containers."""
    answer = (await backend.cli("doctor", *arguments)).answer
    return [one for one in answer["findings"] if one["check"] == "container"]

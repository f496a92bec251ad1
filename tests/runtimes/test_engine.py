"""The tests' own engine: it runs what agents need, and its containers survive it."""

import pytest

from runtimes.engine import CannotStart, DockerEngine


def test_the_image_runs_what_agentctl_and_agents_need(engine: DockerEngine) -> None:
    """Python with its extension modules, git and a shell."""
    program = "import ssl, sqlite3, asyncio, ctypes, sys; print(sys.version_info >= (3, 11))"
    assert engine.docker("run", "--rm", engine.image, "python3", "-c", program) == "True"
    assert engine.docker("run", "--rm", engine.image, "sh", "-c", "git --version").startswith("git version")


def test_containers_outlive_a_killed_engine(engine: DockerEngine) -> None:
    """With live-restore the next engine finds them running."""
    container = engine.docker("run", "-d", engine.image, "sleep", "600")
    try:
        engine.kill()
        engine.start()
        assert engine.docker("inspect", "-f", "{{.State.Running}}", container) == "true"
    finally:
        engine.docker("rm", "-f", container)


def test_what_is_wrong_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that cannot start raises the reason, which becomes that of the skip."""
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(CannotStart, match="root"):
        DockerEngine()

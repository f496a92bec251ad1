"""Stopping an agent: gently first, then by force, and always the whole tree."""

import asyncio
import os

import pytest

from kandev.agentctl.platform import children, process_stat
from kandev.agentctl.records import Exited
from kandev.errors import AgentctlError, AgentDied
from sidecars import Sidecar, processes_of, sidecar

UNTIL_EOF = "import sys\nprint('up')\nsys.stdin.read()\nprint('ended in order')"
UNTIL_SIGTERM = "import signal\nprint('up')\nsignal.pause()"
STUBBORN = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('up')\nwhile True: signal.pause()"
# A child, one in a session of its own, and a daemon that was forked twice and ignores what can be ignored.
FAMILY = """
import os, signal, subprocess, sys
def linger():
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    while True:
        signal.pause()
subprocess.Popen(['sleep', '1000'])
subprocess.Popen(['sleep', '1000'], start_new_session=True)
ready, done = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.write(done, b'x')
        linger()
    os._exit(0)
os.wait()
os.read(ready, 1)
print('up')
"""


async def last_record(one: Sidecar) -> object:
    return (await one.everything())[1][-1]


async def test_proc_6_stdin_is_closed_first() -> None:
    """An agent that ends on end-of-file ends in order, without a signal."""
    async with sidecar() as one:
        await one.run(UNTIL_EOF)
        await one.line(b"up")
        await one.client.stop(grace_s=60)
        output, records = await one.everything()
        assert output[-1] == b"ended in order"
        assert records[-1] == Exited(code=0, signal=None)


async def test_proc_6_sigterm_goes_to_the_group_after_the_grace() -> None:
    """An agent that does not look at its stdin gets SIGTERM, and so does a child in its group."""
    async with sidecar() as one:
        await one.run("import subprocess\nsubprocess.Popen(['sleep', '1000'])\n" + UNTIL_SIGTERM)
        await one.line(b"up")
        await one.client.stop(grace_s=0.1)
        assert await last_record(one) == Exited(code=None, signal=15)
        assert processes_of(one.instance.instance_id) == []


async def test_proc_1_who_ignores_everything_is_killed() -> None:
    """An agent that ignores end-of-file and SIGTERM is killed."""
    async with sidecar() as one:
        await one.run(STUBBORN)
        await one.line(b"up")
        await one.client.stop(grace_s=0.1)
        assert await last_record(one) == Exited(code=None, signal=9)


@pytest.mark.parametrize("grace_s", [0, 0.1])
async def test_proc_1_nobody_of_the_tree_is_left(grace_s: float) -> None:
    """Children in other sessions, and daemons that ignore signals, die with the agent."""
    async with sidecar() as one:
        await one.run(FAMILY + "linger()")
        await one.line(b"up")
        assert len(processes_of(one.instance.instance_id)) == 4
        await one.client.stop(grace_s=grace_s)
        assert processes_of(one.instance.instance_id) == []


async def test_what_an_agent_leaves_running_ends_with_it() -> None:
    """RACE-10: an agent that ends by itself leaves nobody behind who could hold its session."""
    async with sidecar() as one:
        await one.run(FAMILY)
        output, _ = await one.everything()
        assert output == [b"up"]
        await one.client.stop(grace_s=60)
        assert processes_of(one.instance.instance_id) == []


async def test_a_family_that_keeps_forking_dies() -> None:
    """A tree that grows while it is killed is killed."""
    async with sidecar() as one:
        await one.run(
            "import os, signal\nsignal.signal(signal.SIGCHLD, signal.SIG_IGN)\nprint('up')\n"
            "while True:\n    if os.fork() and os.getpid() % 3: os._exit(0)\n"
        )
        await one.line(b"up")
        await one.client.stop(grace_s=0)
        assert processes_of(one.instance.instance_id) == []


async def test_orphans_are_reaped_while_the_agent_runs() -> None:
    """PROC-3: what the agent's dead children leave does not pile up as zombies below agentctl."""
    async with sidecar() as one:
        await one.run(
            "import os\nfor n in range(20):\n    if os.fork() == 0:\n        os.fork()\n        os._exit(0)\n"
            "    os.wait()\nprint('up')\ninput()"
        )
        await one.line(b"up")
        await one.client.send(1, b"end")
        await one.everything()
        await one.client.stop(grace_s=0)
        assert children(one.instance.agentctl_pid) == []


async def test_a_second_stop_without_grace_ends_the_first() -> None:
    """Whoever cannot wait does not have to (RACE-6)."""
    async with sidecar() as one:
        await one.run(STUBBORN)
        await one.line(b"up")
        gentle = asyncio.create_task(one.client.stop(grace_s=600))
        n = 1
        while "stdin" not in await refusal_of_a_line(one, n):
            n += 1
        await one.client.stop(grace_s=0)
        await gentle
        assert await last_record(one) == Exited(code=None, signal=9)


async def refusal_of_a_line(one: Sidecar, n: int) -> str:
    try:
        await one.client.send(n, b"x")
    except (AgentctlError, AgentDied) as error:
        return error.message
    return ""


async def test_race_9_a_stop_is_safe_at_any_time() -> None:
    """Without an agent, twice at once, and after the end: a stop answers that nothing is left."""
    async with sidecar() as one:
        await one.client.stop(grace_s=1)
        await one.run(UNTIL_EOF)
        await asyncio.gather(one.client.stop(grace_s=60), one.client.stop(grace_s=60))
        await one.client.stop(grace_s=60)
        assert await last_record(one) == Exited(code=0, signal=None)


def test_proc_3_a_zombie_is_dead() -> None:
    """A process that ended but was not waited for does not count as alive."""
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    try:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        stat = process_stat(pid)
        assert stat is not None
        assert not stat.alive
    finally:
        os.waitpid(pid, 0)

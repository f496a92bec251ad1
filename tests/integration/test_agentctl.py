"""agentctl with real agents: the journal, lines to stdin, the stream, stderr, and what is refused."""

import asyncio
import os
import resource
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from kandev.agentctl.journal import read_journal
from kandev.agentctl.platform import process_stat
from kandev.agentctl.records import Exited, Started, StdinLine, StdinWritten, Torn
from kandev.agentctl.stderr import stored_tail
from kandev.errors import AgentctlError, AgentDied, AgentNotFound, WorkspaceMissing
from sidecars import ENVIRONMENT, processes_of, sidecar

ECHO = "import sys\nfor line in sys.stdin: print('heard', line.strip())"


async def test_what_the_agent_says_is_journalled_between_our_records() -> None:
    """A line is announced, written and answered in this order; the exit comes last and ends the stream."""
    async with sidecar() as one:
        process = await one.run("print('hello'); print('heard', input())")
        await one.line(b"hello")
        await one.client.send(1, b"a word")
        output, records = await one.everything()
        assert output == [b"hello", b"heard a word"]
        assert records == [
            Started(gen=1, pid=process.pid, start_time=process.start_time, pgid=process.process_group),
            StdinLine(n=1),
            StdinWritten(n=1),
            Exited(code=0, signal=None),
        ]
        health = await one.client.status()
        assert (health.agent.state, health.agent.exit_code, health.last_line) == ("exited", 0, 1)


async def test_a_stream_begins_at_any_line_and_sees_exactly_the_rest() -> None:
    """Whoever attaches again reads on from his offset, while the agent runs and afterwards."""
    async with sidecar() as one:
        await one.run("for n in range(2000): print(n)\ninput()")
        await one.line(b"1999")
        seen = b""
        stream = one.client.stream(0)
        async for piece in stream:
            seen += piece
            if b"\n1999\n" in seen:
                break
        await stream.aclose()
        await one.client.send(1, b"end")
        rest = [piece async for piece in one.client.stream(len(seen))]
        assert b"".join(rest).startswith(b'\x1e{"ev":"stdin","n":1}\n')
        whole = b"".join([piece async for piece in one.client.stream(0)])
        assert whole == seen + b"".join(rest)
        for offset in (seen.index(b"\n7\n") + 1, seen.index(b"\n1000\n") + 1, len(whole)):
            assert b"".join([piece async for piece in one.client.stream(offset)]) == whole[offset:]


@pytest.mark.parametrize("offset", [3, 1 << 40])
async def test_a_stream_from_no_lines_start_is_refused(offset: int) -> None:
    """An offset amid a line, or beyond the end, is another journal's: refused with the bounds."""
    async with sidecar() as one:
        await one.run(["true"])
        await one.everything()
        with pytest.raises(AgentctlError) as caught:
            await anext(one.client.stream(offset))
        assert caught.value.reason == "offset_refused"
        assert caught.value.details == {"start": 0, "end": (await one.client.status()).journal.end}


async def test_a_stream_of_another_instance_is_refused() -> None:
    """A client that looks for another instance at this address does not get this journal."""
    async with sidecar() as one:
        other = one.runtime.connect(one.instance)
        other._instance_id = "another"
        with pytest.raises(AgentctlError) as caught:
            await anext(other.stream(0))
        assert caught.value.reason == "instance_mismatch"
        with pytest.raises(AgentctlError, match="Another agentctl"):
            await other.wait_ready(5)
        await other.aclose()


async def test_a_line_is_taken_once_under_its_number() -> None:
    """The next number is taken, a repeat is acknowledged, a gap or another line under a number is refused."""
    async with sidecar() as one:
        await one.run(ECHO)
        await one.client.send(1, b"one")
        await one.client.send(1, b"one\n")
        for n, line, reason in ((1, b"two", "line_conflict"), (3, b"three", "line_gap"), (0, b"zero", "line_gap")):
            with pytest.raises(AgentctlError) as caught:
                await one.client.send(n, line)
            assert caught.value.reason == reason
            assert caught.value.details == {"last_line": 1}
        await one.client.send(2, b"two")
        await one.client.send(1, b"one")
        await one.client.stop(grace_s=30)
        assert (await one.everything())[0] == [b"heard one", b"heard two"]


@pytest.mark.parametrize("body", [b"", b"\n", b"two\nlines"])
async def test_a_body_that_is_not_one_line_is_refused(body: bytes) -> None:
    """What would reach the agent as no line, or as two, is not written."""
    async with sidecar() as one:
        await one.run(ECHO)
        with pytest.raises(AgentctlError) as caught:
            await one.client.send(1, body)
        assert caught.value.reason == "bad_request"


async def test_a_line_sent_again_at_the_same_time_is_written_once() -> None:
    """Two requests with one line, both in flight, are one line."""
    async with sidecar() as one:
        await one.run("import sys, time\nprint('up')\ntime.sleep(0.3)\nfor line in sys.stdin: print(len(line))")
        await one.line(b"up")
        others = [one.runtime.connect(one.instance) for _ in range(4)]
        await asyncio.gather(*(client.send(1, b"x" * 300_000) for client in others))
        await one.client.stop(grace_s=30)
        assert (await one.everything())[0] == [b"up", b"300001"]
        for client in others:
            await client.aclose()


async def test_an_agent_that_does_not_read_hangs_nobody() -> None:
    """A line that does not go into the pipe is reported; it is written whole, once, when the agent reads."""
    async with sidecar(write_timeout_s=0.2) as one:
        await one.run("import os, signal, sys\nsignal.sigwait({signal.SIGUSR1})\nprint(len(sys.stdin.readline()))")
        with pytest.raises(AgentctlError) as caught:
            await one.client.send(1, b"x" * 500_000)
        assert caught.value.reason == "agent_not_reading"
        with pytest.raises(AgentctlError) as caught:
            await one.client.send(2, b"behind it")
        assert caught.value.reason == "agent_not_reading"
        health = await one.client.status()
        assert (health.agent.state, health.last_line) == ("running", 1)


async def test_a_slow_agent_gets_a_line_whole() -> None:
    """The same request again waits for the write that was begun, and is then acknowledged."""
    async with sidecar(write_timeout_s=0.2) as one:
        await one.run("import sys, time\nprint('up')\ntime.sleep(1)\nprint(len(sys.stdin.readline()))")
        await one.line(b"up")
        with pytest.raises(AgentctlError):
            await one.client.send(1, b"x" * 500_000)
        acknowledged = False
        while not acknowledged:
            with suppress(AgentctlError):
                await one.client.send(1, b"x" * 500_000)
                acknowledged = True
        output, records = await one.everything()
        assert output == [b"up", b"500001"]
        assert records[1:3] == [StdinLine(n=1), StdinWritten(n=1)]


async def test_a_line_to_a_dead_agent_says_how_it_died() -> None:
    """The error is typed and carries the exit code; nothing is announced."""
    async with sidecar() as one:
        await one.run("import sys; sys.exit('out of words')")
        await one.everything()
        with pytest.raises(AgentDied) as caught:
            await one.client.send(1, b"too late")
        assert (caught.value.exit_code, caught.value.stderr) == (1, "out of words\n")
        assert StdinLine(n=1) not in (await one.everything())[1]


async def test_a_line_without_an_agent_is_refused() -> None:
    """Before the start there is nobody to write to."""
    async with sidecar() as one:
        with pytest.raises(AgentctlError) as caught:
            await one.client.send(1, b"too early")
        assert caught.value.reason == "not_started"


async def test_wire_7_stderr_is_drained_into_bounded_space() -> None:
    """An agent that floods stderr is never blocked by it; the last bytes are there, the files are bounded."""
    async with sidecar() as one:
        await one.run(
            "import sys\nfor n in range(50_000): sys.stderr.write(f'warning {n:06} ' + 'x' * 80 + '\\n')\nprint('done')"
        )
        assert (await one.everything())[0] == [b"done"]
        tail = await one.client.stderr_tail(100_000)
        assert tail.endswith("warning 049999 " + "x" * 80 + "\n")
        assert len(tail) == 65536
        assert (await one.client.stderr_tail(3)) == "xx\n"
        sizes = {name: os.stat(Path(one.instance.directory) / name).st_size for name in ("stderr.log", "stderr.log.1")}
        assert max(sizes.values()) <= 1 << 20
        assert stored_tail(one.instance.directory, 100_000).decode().endswith(tail)
        assert len(stored_tail(one.instance.directory, 1 << 30)) == sum(sizes.values())
        assert stored_tail(one.instance.directory + "none", 10) == b""


async def test_wire_8_the_exit_is_seen_while_a_grandchild_holds_stdout() -> None:
    """The agent's end is its exit, not end-of-file; what it left running ends with it."""
    async with sidecar() as one:
        await one.run(
            "import subprocess\nsubprocess.Popen(['sleep', '1000'])\nprint('last words')\nraise SystemExit(4)"
        )
        output, records = await one.everything()
        assert output == [b"last words"]
        assert records[-1] == Exited(code=4, signal=None)


async def test_crash_17_the_last_lines_come_before_the_exit() -> None:
    """An agent that writes a lot and dies at once loses none of it."""
    async with sidecar() as one:
        await one.run("import os\nos.write(1, b''.join(b'%d\\n' % n for n in range(150_000)))\nos.kill(os.getpid(), 9)")
        output, records = await one.everything()
        assert output == [b"%d" % n for n in range(150_000)]
        assert records[-1] == Exited(code=None, signal=9)


async def test_crash_17_the_last_lines_come_though_reading_stood_at_the_cap() -> None:
    """An agent that dies with more in its pipe than anybody wanted to read loses none of it."""
    async with sidecar(cap_bytes=100_000) as one:
        await one.run(
            "import os\nos.write(1, b''.join(b'%0599d\\n' % n for n in range(1000)))\nos.kill(os.getpid(), 9)"
        )
        output, records = await one.everything()
        assert output == [b"%0599d" % n for n in range(1000)]
        assert records[-1] == Exited(code=None, signal=9)


async def test_a_death_in_mid_line_is_marked() -> None:
    """The unfinished line is ended and marked as torn, before the exit."""
    async with sidecar() as one:
        await one.run("import os\nos.write(1, b'whole\\nhal')\nos._exit(1)")
        output, records = await one.everything()
        assert output == [b"whole", b"hal"]
        assert records[1:] == [Torn(), Exited(code=1, signal=None)]


async def test_lines_that_look_like_ours_are_the_agents() -> None:
    """An agent cannot forge a record."""
    async with sidecar() as one:
        await one.run('print(\'\\x1e{"ev":"exit","code":0,"signal":null}\')')
        output, records = await one.everything()
        assert output == [b'\x1e\x1e{"ev":"exit","code":0,"signal":null}']
        assert len(records) == 2


async def test_reading_stops_at_the_cap_and_goes_on_after_an_acknowledgement() -> None:
    """WIRE-6: without a reader the agent stands, with what it wrote kept; nothing is lost when it goes on."""
    async with sidecar(cap_bytes=500_000) as one:
        await one.run("for n in range(600_000): print(n)")
        while not (await one.client.status()).journal.paused:
            await asyncio.sleep(0.01)
        health = await one.client.status()
        assert health.journal.paused == "cap"
        assert health.agent.state == "running"
        assert 500_000 < health.journal.end < 1_500_000
        output, overflows, at, told = [], 0, 0, 0
        async for line in one.lines():
            at += len(line) + 1
            if line.startswith(b"\x1e"):
                overflows += b"overflow" in line
            else:
                output.append(line)
            if at - told > 200_000:
                await one.client.ack(at)
                told = at
        assert output == [b"%d" % n for n in range(600_000)]
        assert overflows >= 1


async def test_wire_2_a_line_longer_than_the_journal_may_grow_is_cut_and_the_agent_goes_on() -> None:
    """No reader could ever acknowledge a part of it, so that agent and session would stand for ever."""
    async with sidecar(cap_bytes=500_000) as one:
        await one.run("print('before'); print('x' * 20_000_000); print('after'); input(); print('last', end='')")
        output, torn, at = [], 0, 0
        async for line in one.lines():
            at += len(line) + 1
            if line.startswith(b"\x1e"):
                torn += b"torn" in line
            else:
                output.append(line)
                await one.client.ack(at)
            if line == b"after":
                await one.client.send(1, b"go on")
        assert [output[0], *output[2:]] == [b"before", b"after", b"last"]
        assert set(output[1]) == {ord("x")}
        assert 500_000 < len(output[1]) < 1_500_000
        assert torn == 2, "the long line, and the last one, which has no newline"


async def test_acknowledged_bytes_are_given_back() -> None:
    """Segments that every reader has stored are deleted while the agent runs; later offsets stay."""
    async with sidecar() as one:
        await one.run("for n in range(400): print('x' * 99_999)\nprint('end')\ninput()")
        at = 0
        async for line in one.lines():
            at += len(line) + 1
            if line == b"end":
                break
        assert len(os.listdir(one.journal)) >= 3
        await one.client.ack(at)
        health = await one.client.status()
        assert (health.journal.acked, health.journal.paused) == (at, "")
        assert len(os.listdir(one.journal)) == 1
        await one.client.send(1, b"x")
        rest = [line async for line in one.lines(at)]
        assert rest[-1] == b'\x1e{"ev":"exit","code":0,"signal":null}'


async def test_hist_12_a_full_disk_stops_the_reading_and_loses_nothing() -> None:
    """No room: agentctl says so and refuses lines; with room again everything is there, in order."""
    async with sidecar() as one:
        await one.run(
            "import sys\nfor n in range(300_000): print(n)\nfor line in sys.stdin: print('heard', line, end='')"
        )
        pid = one.instance.agentctl_pid
        hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)[1]
        size = (await one.client.status()).journal.end
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (size + 100_001, hard))
        while (await one.client.status()).journal.paused != "disk_full":
            await asyncio.sleep(0.01)
        assert (await one.client.status()).journal.trouble == os.strerror(27)
        with pytest.raises(AgentctlError) as caught:
            await one.client.send(1, b"no room")
        assert caught.value.reason == "disk_full"
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, hard))
        await one.line(b"299999")
        assert (await one.client.status()).last_line == 0
        await one.client.send(1, b"room")
        await one.client.stop(grace_s=30)
        assert (await one.everything())[0] == [*(b"%d" % n for n in range(300_000)), b"heard room"]


async def test_a_command_that_is_missing_is_named() -> None:
    """The error is typed; agentctl can be configured again and started."""
    async with sidecar() as one:
        with pytest.raises(AgentNotFound, match="no-such-agent") as caught:
            await one.run(["no-such-agent", "--acp"])
        assert caught.value.reason == "not_found"
        await one.run(["true"])
        assert (await one.everything())[1][-1] == Exited(code=0, signal=None)


async def test_a_file_that_is_no_program_is_named(tmp_path: Path) -> None:
    """A text without an interpreter's line cannot be executed, and the error says so."""
    script = tmp_path / "script"
    script.write_text("just words\n")
    script.chmod(0o755)
    async with sidecar() as one:
        with pytest.raises(AgentNotFound) as caught:
            await one.run([str(script)])
        assert caught.value.reason == "not_executable"


async def test_work_5_a_missing_directory_starts_nothing() -> None:
    """The agent is never started somewhere else."""
    async with sidecar() as one:
        with pytest.raises(WorkspaceMissing):
            await one.run(["true"], cwd="/no/such/directory")
        assert (await one.client.status()).agent.state == "configured"


async def test_a_short_command_runs_in_the_surroundings_of_the_agent() -> None:
    """Before that is started; what it wrote and how it ended is the answer, and nothing of it is in the journal."""
    async with sidecar() as one:
        run, env = partial(one.client.run, cwd="/"), {**ENVIRONMENT, "WORD": "apple"}
        ran = await run(command=["sh", "-c", "echo $WORD $PWD $TMPDIR; echo no >&2; exit 3"], env=env)
        assert (ran.code, ran.err) == (3, "no\n")
        assert ran.out.split()[:2] == ["apple", "/"]
        assert one.instance.directory in ran.out.split()[2]
        with pytest.raises(AgentNotFound):
            await run(command=["/nowhere/agent"], env=env)
        with pytest.raises(WorkspaceMissing):
            await run(command=["true"], env=env, cwd="/nowhere")
        await one.run(["sh", "-c", "echo up; read word"])
        with pytest.raises(AgentctlError):
            await run(command=["true"], env=env)
        await one.client.send(1, b"end\n")
        assert (await one.everything())[0] == [b"up"]


async def test_a_short_command_ends_with_its_agentctl() -> None:
    """Also one that nobody waits for any more (`sidecar` looks that none is left)."""
    async with sidecar() as one:
        running = asyncio.create_task(one.client.run(command=["sleep", "600"], env=ENVIRONMENT, cwd="/"))
        async with asyncio.timeout(10):
            while not processes_of(one.instance.instance_id):
                await asyncio.sleep(0.02)
        running.cancel()
        await asyncio.wait([running])
        assert len(processes_of(one.instance.instance_id)) == 1


async def test_one_agent_at_a_time_and_another_after_it() -> None:
    """A second start is refused while the first agent runs; after its exit the journal goes on behind it."""
    async with sidecar() as one:
        with pytest.raises(AgentctlError) as caught:
            await one.client.start()
        assert caught.value.reason == "not_configured"
        await one.run("print('first', input())")
        with pytest.raises(AgentctlError) as caught:
            await one.client.start()
        assert caught.value.reason == "already_started"
        await one.client.send(1, b"one")
        await one.client.stop(grace_s=30)
        end = (await one.client.status()).journal.end
        await one.run("print('second', input())")
        await one.client.send(1, b"one")
        lines = [line async for line in one.lines(end)]
        assert lines[0].startswith(b'\x1e{"ev":"start","gen":2,')
        assert b"second one" in lines


async def test_the_agent_gets_exactly_the_environment_that_it_was_given() -> None:
    """Nothing of agentctl's own environment; the instance id and a temporary directory are added."""
    async with sidecar() as one:
        await one.run(["env"])
        names = {line.partition(b"=")[0] for line in (await one.everything())[0]}
        assert names == {b"PATH", b"KANDEV_INSTANCE_ID", b"TMPDIR"}


async def test_proc_7_the_temporary_directory_is_the_agents_own_and_goes_with_it() -> None:
    """It is there, private, while the agent runs, and removed at its end."""
    async with sidecar() as one:
        await one.run(
            "import os, stat\npath = os.environ['TMPDIR']\nopen(path + '/file', 'w').close()\n"
            "print(path, oct(os.stat(path).st_mode & 0o777))\ninput()"
        )
        async for line in one.lines():
            if not line.startswith(b"\x1e"):
                break
        path, mode = line.decode().split()
        assert mode == "0o700"
        assert path.startswith(one.instance.directory)
        await one.client.stop(grace_s=30)
        assert not os.path.exists(path)


async def test_proc_4_neither_agentctl_nor_the_agent_is_in_our_session() -> None:
    """Ctrl-C in the backend's terminal reaches neither; each leads a group of its own."""
    async with sidecar() as one:
        process = await one.run(ECHO)
        agentctl, agent = process_stat(one.instance.agentctl_pid), process_stat(process.pid)
        assert agentctl is not None
        assert agent is not None
        assert agentctl.session == agentctl.pid != os.getsid(0)
        assert agent.session == agent.group == agent.pid == process.process_group


async def test_tok_9_socket_and_files_are_for_their_owner_only() -> None:
    """Files are 0600, directories 0700."""
    async with sidecar() as one:
        await one.run(ECHO)
        await one.client.send(1, b"a secret")
        for directory, names, files in os.walk(one.instance.directory):
            assert {os.stat(os.path.join(directory, name)).st_mode & 0o777 for name in names} <= {0o700}
            assert {os.stat(os.path.join(directory, name)).st_mode & 0o777 for name in files} <= {0o600}
        assert os.stat(os.path.dirname(one.instance.directory)).st_mode & 0o777 == 0o700


async def test_an_offline_reader_gets_what_a_stream_got() -> None:
    """The files tell the same as the stream, for a backend that comes back after everything ended."""
    async with sidecar() as one:
        await one.run("for n in range(100): print(n)\nimport os\nos.write(1, b'torn')")
        streamed = b"".join([piece async for piece in one.client.stream(0)])
        await one.runtime.stop_instance(one.instance, grace_s=1)
        assert b"".join(read_journal(one.journal, 0)) == streamed
        assert processes_of(one.instance.instance_id) == []


async def test_a_reader_that_stops_reading_slows_only_itself() -> None:
    """A stream that nobody reads holds nothing up: other calls and another stream go on."""
    async with sidecar() as one:
        await one.run("for n in range(300_000): print(n)\ninput()")
        idle = one.client.stream(0)
        await anext(idle)
        await one.line(b"299999")
        assert (await one.client.status()).agent.state == "running"
        await idle.aclose()


async def test_many_calls_at_once_do_not_wait_for_a_slow_one() -> None:
    """A stop that gives grace does not keep others from being answered."""
    async with sidecar() as one:
        await one.run("import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('up')\nsignal.pause()")
        await one.line(b"up")
        stop = asyncio.create_task(one.client.stop(grace_s=600))
        answers = await asyncio.gather(*(one.client.status() for _ in range(20)))
        assert {answer.agent.state for answer in answers} == {"running"}
        assert not stop.done()
        await one.client.stop(grace_s=0)
        await stop
        assert (await one.everything())[1][-1] == Exited(code=None, signal=9)

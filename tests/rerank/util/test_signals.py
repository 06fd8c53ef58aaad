"""Signals end a process while a library holds the interpreter, as PID 1 and as any other process."""

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.serving import TIMEOUT_S, wait_for

#: A new PID namespace, whose first process is PID 1; as a user without rights, in a user namespace of its own.
AS_PID_1 = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc", "--kill-child"]
#: Waits in C without giving the interpreter away; argv[1] is a file that says that it has begun.
STUCK = "(open(sys.argv[1], 'w').close(), ctypes.PyDLL(None).sleep(600))"
SIGNALS = f"""
import ctypes, sys
from rerank.util.signals import end_at_once, ending_signals
end_at_once(ending_signals())
{STUCK}
"""
#: As each installed command begins.
COMMAND = f"""
import ctypes, sys
from rerank.commands.run import run
run(lambda: {STUCK})
"""


def can_be_pid_1() -> bool:
    return bool(shutil.which("unshare")) and subprocess.run([*AS_PID_1, "true"], capture_output=True).returncode == 0


def code_after(number: signal.Signals, program: str, began: Path, *before: str) -> int:
    """Returns the exit code of a stuck program that gets a signal."""
    inherited = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # tests under `nohup` inherit that it is ignored
    with subprocess.Popen([*before, sys.executable, "-c", program, str(began)]) as process:
        signal.signal(signal.SIGHUP, inherited)
        try:
            wait_for(began.exists)
            child = int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()) if before else process.pid
            subprocess.run(["kill", f"-{number.value}", str(child)], check=True)
            return process.wait(TIMEOUT_S)
        finally:
            process.kill()


@pytest.mark.skipif(not can_be_pid_1(), reason="this system gives no PID namespace")
@pytest.mark.parametrize("program", [SIGNALS, COMMAND], ids=["signals", "command"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_signal_ends_pid_1_while_a_library_holds_the_interpreter(number, program, tmp_path):
    """It was dropped, and `docker stop` waited for the whole time of grace."""
    assert code_after(number, program, tmp_path / "began", *AS_PID_1) == number


def test_signal_ends_another_process_by_the_default_action(tmp_path):
    assert code_after(signal.SIGTERM, SIGNALS, tmp_path / "began") == -signal.SIGTERM

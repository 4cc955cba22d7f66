"""A real Slurm of one node on this machine, for as long as a test needs it."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd")

_CONFIG = """
ClusterName=loopback
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CryptoType=crypto/munge
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SchedulerType=sched/builtin
SelectType=select/cons_tres
MpiDefault=none
ReturnToService=2
NodeName={host} NodeAddr=127.0.0.1 CPUs=2 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def program(name: str) -> str | None:
    """Path of one of Slurm's programs; None: not installed."""
    return shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")


@contextmanager
def running_slurm(folder: Path) -> Iterator[dict[str, str]]:
    """Run the daemons in `folder`; what a client needs in its environment."""
    for name in ("state", "spool"):
        (folder / name).mkdir(parents=True)
    key = folder / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o400)
    config = folder / "slurm.conf"
    host = socket.gethostname().split(".")[0]
    config.write_text(_CONFIG.format(folder=folder, host=host, ports=_free_ports(2)))
    environment = {**os.environ, "SLURM_CONF": str(config)}
    munge = {"--key-file": key, "--seed-file": folder / "munge.seed"}
    munge |= {f"--{what}": folder / f"munge.{what}" for what in ("socket", "pid-file", "log-file")}
    commands = [
        ["--foreground", "--force", *(str(word) for pair in munge.items() for word in pair)],
        ["-D", "-L", f"{folder}/slurmctld.log", "-f", str(config)],
        ["-D", "-L", f"{folder}/slurmd.log", "-f", str(config), "-N", host],
    ]
    daemons = []
    try:
        for name, arguments in zip(PROGRAMS, commands, strict=True):
            started = program(name)
            assert started is not None
            with (folder / f"{name}.out").open("w") as out:
                daemons.append(
                    subprocess.Popen([started, *arguments], env=environment, stdout=out, stderr=out)
                )
            time.sleep(0.5)
        _wait_until_idle(environment, folder)
        yield {"SLURM_CONF": str(config)}
    finally:
        for daemon in reversed(daemons):
            daemon.terminate()
        for daemon in daemons:
            daemon.wait(timeout=30)


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def _wait_until_idle(environment: dict[str, str], folder: Path) -> None:
    deadline = time.monotonic() + 60
    said = ""
    while "idle" not in said:
        if time.monotonic() > deadline:
            logs = "\n".join(p.read_text()[-2000:] for p in folder.glob("slurm*.log"))
            raise AssertionError(f"Slurm did not come up: {said}\n{logs}")
        time.sleep(0.5)
        done = subprocess.run(["sinfo", "-h"], env=environment, capture_output=True, text=True)
        said = done.stdout + done.stderr

"""The Slurm scripts on a real one-node Slurm, which the tests start as the current user."""

from __future__ import annotations

import getpass
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from contextlib import ExitStack

import pytest
import yaml
from documented import INFRA
from free_ports import free_port

pytestmark = [pytest.mark.system, pytest.mark.ray, pytest.mark.timeout(900)]

WAIT_S = 400
CONFIGURATION = """\
ClusterName=trial
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={control}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/none
CredType=cred/none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
MailProg=/bin/true
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
NodeName=one NodeHostname={host} NodeAddr=127.0.0.1 Port={node} CPUs={cpus} State=UNKNOWN
PartitionName=all Nodes=one Default=YES MaxTime=INFINITE State=UP OverSubscribe=YES
"""
# Nothing of it is used, but a node daemon asks for it where no control groups are mounted.
CONTROL_GROUPS = "CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n"


class Slurm:
    """A controller and a node.

    Args:
        folder: Of everything they write.
        stack: Ends what is started.
    """

    def __init__(self, folder, stack):
        self.folder = folder
        for name in ("state", "spool", "work"):
            (folder / name).mkdir()
        path = folder / "slurm.conf"
        path.write_text(
            CONFIGURATION.format(
                host=socket.gethostname().partition(".")[0],
                user=getpass.getuser(),
                folder=folder,
                cpus=os.cpu_count(),
                control=free_port(),
                node=free_port(),
            )
        )
        (folder / "cgroup.conf").write_text(CONTROL_GROUPS)
        environment = {k: v for k, v in os.environ.items() if not k.startswith("SLURM_")}
        self.environment = {**environment, "SLURM_CONF": str(path), "TANGO_ENV": sys.prefix}
        for daemon in (["slurmctld", "-D", "-c"], ["slurmd", "-D", "-N", "one"]):
            self._start(daemon, stack)
        self.wait("node", lambda: self.say("sinfo", "--noheader", "--format=%T") == "idle")

    def _start(self, daemon, stack):
        program = shutil.which(daemon[0], path=f"{os.environ['PATH']}:/usr/sbin")
        log = stack.enter_context((self.folder / f"{daemon[0]}.out").open("w"))
        process = subprocess.Popen(
            [program, *daemon[1:]], env=self.environment, stdout=log, stderr=log
        )
        stack.callback(process.wait, 60)
        stack.callback(process.terminate)

    def say(self, *command):
        """What a command prints."""
        done = subprocess.run(
            command,
            env=self.environment,
            cwd=self.folder / "work",
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr + self.logs()
        return done.stdout.strip()

    def facts(self, job):
        """What Slurm knows of a job."""
        said = self.say("scontrol", "show", "job", "--oneliner", job)
        return dict(re.findall(r"(\w+)=(\S*)", said.splitlines()[0]))

    def log(self, name):
        """What a job has printed."""
        path = self.folder / "work" / name
        return path.read_text() if path.exists() else ""

    def wait(self, what, until):
        """Until it is so."""
        end = time.monotonic() + WAIT_S
        while not until():
            assert time.monotonic() < end, f"{what}: {self.logs()}"
            time.sleep(0.5)

    def logs(self):
        """The ends of all logs, for messages."""
        paths = [*self.folder.glob("*.out"), *self.folder.glob("work/*.log")]
        return "\n".join(f"{path.name}: {path.read_text()[-3000:]}" for path in paths)


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    with ExitStack() as stack:
        cluster = Slurm(tmp_path_factory.mktemp("slurm"), stack)
        yield cluster
        subprocess.run(["scancel", "--user", str(os.getuid())], env=cluster.environment, timeout=60)
        cluster.wait("no jobs", lambda: cluster.say("squeue", "--noheader") == "")


SCRIPTS = {
    "cluster": ("--nodes=1", "--gpus-per-node=0", "tango.sbatch"),
    "array": ("--array=0-0", "--gpus=0", "--cpus-per-task=1", "tango_array.sbatch"),
}


@pytest.mark.parametrize("kind", SCRIPTS)
def test_a_job_out_of_time_is_requeued_and_continued(slurm, kind, tmp_path):
    output, clips = tmp_path / "runs", 120
    recipe = {
        "benchmark": {"name": "shapes"},
        "model": {"name": "tiny"},
        "methods": [{"name": "full"}, {"name": "tango", "retention": [0.1, 0.2]}],
        "limit": clips,
    }
    (slurm.folder / "work" / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    *flags, script = SCRIPTS[kind]
    arguments = ("--parsable", "--time=4", *flags, str(INFRA / "slurm" / script))
    job = slurm.say("sbatch", *arguments, "recipe.yaml", "--output", str(output)).partition(";")[0]
    job += "" if kind == "cluster" else "_0"
    name = f"tango-{job}.log"
    begun = re.compile(rf"^\d+ of {clips} clips", re.MULTILINE)
    slurm.wait("a clip", lambda: begun.search(slurm.log(name)))
    # As Slurm does before the limit, which it looks at twice a minute.
    slurm.say("scancel", "--batch", "--signal=TERM", job)
    # Where its processes took minutes to end it waits no more, and may be seen only at work again.
    slurm.wait(
        "queued again",
        lambda: (
            (facts := slurm.facts(job))["Restarts"] == "1"
            and facts["JobState"] in ("PENDING", "RUNNING", "COMPLETED")
        ),
    )
    assert "tango: out of time; the job is queued again" in slurm.log(name)
    if slurm.facts(job)["JobState"] == "PENDING":
        # Slurm itself waits two minutes: a credential of the second of the end would be refused.
        slurm.say("scontrol", "update", f"jobid={job}", "starttime=now+5", "timelimit=60")
    slurm.wait("its end", lambda: slurm.facts(job)["JobState"] in ("COMPLETED", "FAILED"))
    facts, log = slurm.facts(job), slurm.log(name)
    assert (facts["JobState"], facts["ExitCode"]) == ("COMPLETED", "0:0"), log
    assert "continuing " in log
    assert log.count("1 Ray nodes at") == (2 if kind == "cluster" else 0)
    (summary,) = output.glob("*/summary.json")
    assert json.loads(summary.read_text())["num_clips"] == clips

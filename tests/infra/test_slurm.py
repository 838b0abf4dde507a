"""The Slurm scripts, run with stand-ins for the commands of a cluster."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from waiting import until

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted((ROOT / "infra/slurm").iterdir())
WAIT_S = 120

BASH = "#!/usr/bin/env bash\n"
# Every one writes its name and arguments into the file `said`, once it can take a signal.
SAY = 'echo "$(basename "$0") $*" >> "$SAID"\n'
TRAP = 'trap \'echo "$(basename "$0") ended" >> "$SAID"; exit 143\' TERM\n'
FOR_EVER = "while :; do sleep 0.1; done\n"
STAND_INS = {
    "scontrol": BASH + SAY + "if [[ $1 == show ]]; then printf 'one\\ntwo\\n'; fi\n",
    # When the job ends, for a Slurm that does not tell the job.
    "squeue": BASH + 'echo "${ENDS_AT-NONE}"\n',
    # Every step sees the CPUs of its own node; in the job it is those of the first one.
    "srun": BASH
    + "while [[ $1 == --* ]]; do\n"
    + "    case $1 in --nodelist=two) export SLURM_CPUS_ON_NODE=6 ;; esac\n"
    + '    shift\ndone\nexec "$@"\n',
    # What Debian says of itself: its name is 127.0.1.1 there.
    "hostname": BASH
    + "case $1 in\n"
    + "-I) echo ${ADDRESSES-fd00::2 127.0.0.1 169.254.3.4 10.0.0.1 172.17.0.1} ;;\n"
    + "*) echo 127.0.1.1 ;;\nesac\n",
    "ray": BASH + TRAP + SAY + FOR_EVER,
    # The script asks it to wait for as many nodes as its third argument says.
    "python": BASH
    + SAY
    + "cat > /dev/null\n"
    + 'until (($(grep -c "^ray start" "$SAID") >= $3)); do sleep 0.1; done\n',
    "tango": BASH + TRAP + SAY + f'if [[ -e "$HOLD" ]]; then {FOR_EVER.strip()}; fi\nexit 7\n',
}


@pytest.fixture
def slurm(tmp_path):
    """`slurm(script, *arguments, only=..., **variables)` starts a script as Slurm would."""
    started = []

    def start(script, *arguments, only=tuple(STAND_INS), **variables):
        programs = tmp_path / "programs"
        programs.mkdir(exist_ok=True)
        for name in only:
            path = programs / name
            path.write_text(STAND_INS[name])
            path.chmod(path.stat().st_mode | stat.S_IXUSR)
        own = Path(sys.executable).parent
        process = subprocess.Popen(
            ["bash", ROOT / "infra/slurm" / script, *map(str, arguments)],
            cwd=tmp_path,
            env={
                **os.environ,
                "PATH": os.pathsep.join([str(programs), str(own), os.environ["PATH"]]),
                "PYTHONPATH": str(ROOT),
                "SAID": str(tmp_path / "said"),
                "HOLD": str(tmp_path / "hold"),
                "SLURM_JOB_ID": "77",
                "SLURM_JOB_NODELIST": "node[1-2]",
                "SLURM_CPUS_ON_NODE": "2",
                "SLURM_JOB_END_TIME": str(int(time.time()) + 100),
                "SLURM_ARRAY_JOB_ID": "70",
                "SLURM_ARRAY_TASK_ID": "1",
                "SLURM_ARRAY_TASK_COUNT": "4",
                "SLURM_ARRAY_TASK_MIN": "0",
                "SLURM_ARRAY_TASK_MAX": "3",
                **variables,
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


def said(tmp_path):
    """What the stand-ins were asked, in order."""
    path = tmp_path / "said"
    return path.read_text().splitlines() if path.exists() else []


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_scripts_request_a_signal_before_the_limit_and_allow_requeueing(script):
    options = [line for line in script.read_text().splitlines() if line.startswith("#SBATCH")]
    assert "#SBATCH --signal=B:TERM@120" in options
    assert "#SBATCH --requeue" in options
    assert "#SBATCH --open-mode=append" in options


def test_a_job_starts_and_stops_a_head_and_workers(slurm, tmp_path):
    process = slurm("tango.sbatch", "my recipe.yaml", "--output", "/shared/runs")
    output, _ = process.communicate(timeout=WAIT_S)
    assert process.returncode == 7, output
    lines = said(tmp_path)
    starts = sorted(line for line in lines if line.startswith("ray start"))
    head = "--head --node-ip-address=10.0.0.1 --port=20077 --include-dashboard=false"
    start = "ray start --log-color=false"
    assert starts == [
        f"{start} --num-cpus=2 {head} --disable-usage-stats --block",
        f"{start} --num-cpus=6 --address=10.0.0.1:20077 --disable-usage-stats --block",
    ]
    assert "python - 10.0.0.1:20077 2" in lines
    assert (
        "tango sweep my recipe.yaml --address 10.0.0.1:20077 --continue --output /shared/runs"
        in lines
    )
    assert lines.count("ray ended") == 2


def test_several_nodes_need_an_ipv4_address(slurm, tmp_path):
    process = slurm("tango.sbatch", "recipe.yaml", ADDRESSES="127.0.1.1 fd00::2")
    output, _ = process.communicate(timeout=WAIT_S)
    assert process.returncode == 2
    assert output.startswith("tango: other nodes cannot reach one: `hostname -I` gives no IPv4")
    assert len(output.splitlines()) == 1
    assert not [line for line in said(tmp_path) if line.startswith("ray start")]


END, TOLD_BY_SQUEUE = "SLURM_JOB_END_TIME", "ENDS_AT"


@pytest.mark.parametrize(
    ("told", "left_s"),
    [(END, 100), (TOLD_BY_SQUEUE, 100), (END, 5000), (TOLD_BY_SQUEUE, 5000), (END, None)],
)
@pytest.mark.parametrize(
    ("script", "name"), [("tango.sbatch", "77"), ("tango_array.sbatch", "70_1")]
)
def test_a_job_that_ends_is_queued_again_only_if_it_is_out_of_time(
    slurm, tmp_path, script, name, told, left_s
):
    (tmp_path / "hold").touch()
    end = "" if left_s is None else str(int(time.time()) + left_s)
    process = slurm(script, "recipe.yaml", **{END: "", told: end})
    until(lambda: "tango sweep" in "\n".join(said(tmp_path)), "the sweep", WAIT_S)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=WAIT_S)
    assert process.returncode == 143, output
    lines = said(tmp_path)
    assert "tango ended" in lines
    requeued = [line for line in lines if line.startswith("scontrol requeue")]
    assert requeued == ([f"scontrol requeue {name}"] if left_s == 100 else [])
    assert "SIGTERM from Slurm" in output


def test_a_partial_array_needs_the_number_of_shards(slurm, tmp_path):
    part = {
        "SLURM_ARRAY_TASK_ID": "5",
        "SLURM_ARRAY_TASK_MIN": "3",
        "SLURM_ARRAY_TASK_MAX": "5",
        "SLURM_ARRAY_TASK_COUNT": "2",
    }
    process = slurm("tango_array.sbatch", "recipe.yaml", **part)
    output, _ = process.communicate(timeout=WAIT_S)
    assert process.returncode == 2
    assert "set TANGO_SHARDS to the number of shards" in output
    process = slurm(
        "tango_array.sbatch", "recipe.yaml", TANGO_SHARDS="8", TANGO_COMMAND="precompute", **part
    )
    process.communicate(timeout=WAIT_S)
    assert said(tmp_path) == ["tango precompute recipe.yaml --shard 5/8"]

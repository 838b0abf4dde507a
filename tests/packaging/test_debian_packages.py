"""The script that checks and installs the Debian packages of tests marked `system`."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "infra/debian_packages.sh"
NAMES = [
    line
    for line in (ROOT / "infra/debian.txt").read_text().splitlines()
    if line and not line.startswith("#")
]


@pytest.fixture
def machine(tmp_path):
    """`machine(action, installed, **programs)` runs the script with these programs only."""

    def run(action, installed=(), **programs):
        for name in ("bash", "dirname", "sed", "env", "grep", "touch"):
            (tmp_path / name).symlink_to(shutil.which(name))
        (tmp_path / "installed").write_text("".join(f"{name}\n" for name in installed))
        dpkg = f'grep -qx "${{!#}}" {tmp_path}/installed && echo -n installed || exit 1'
        for name, text in {"dpkg-query": dpkg, "id": "echo 1000", **programs}.items():
            (tmp_path / name).write_text(f"#!/usr/bin/env bash\n{text}\n")
            (tmp_path / name).chmod(0o755)
        environment = {"PATH": str(tmp_path)}
        return subprocess.run(
            [SCRIPT, action], env=environment, capture_output=True, text=True, timeout=60
        )

    return run


def test_check_names_missing_packages(machine, tmp_path):
    done = machine("check", NAMES[1:], **{"apt-get": f"touch {tmp_path}/called"})
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert f"packages are missing: {NAMES[0]};" in line
    assert not (tmp_path / "called").exists()


@pytest.mark.parametrize("user", [0, 1000])
def test_only_missing_packages_are_installed(machine, tmp_path, user):
    log = tmp_path / "log"
    apt = (
        f'echo "apt-get $* $DEBIAN_FRONTEND" >>{log}\n'
        f'[ "${{!#}}" = -qq ] || echo "${{!#}}" >>{tmp_path}/installed'
    )
    sudo = f'echo "sudo $1" >>{log}; unset DEBIAN_FRONTEND; exec "$@"'
    done = machine("install", NAMES[1:], **{"apt-get": apt, "sudo": sudo, "id": f"echo {user}"})
    assert done.returncode == 0, done.stderr
    lines = log.read_text().splitlines()
    (installed,) = (line for line in lines if line.startswith("apt-get") and " install " in line)
    assert installed.endswith(f" --no-install-recommends {NAMES[0]} noninteractive")
    assert any(line.startswith("sudo") for line in lines) == (user != 0)


def test_a_failed_installation_is_an_error(machine):
    done = machine("install", [], **{"apt-get": "exit 0", "sudo": 'exec "$@"'})
    assert done.returncode == 1
    assert f"apt-get installed all but: {' '.join(NAMES)}" in done.stderr


@pytest.mark.system
def test_the_packages_are_installed():
    done = subprocess.run([SCRIPT, "check"], env=dict(os.environ), timeout=60)
    assert done.returncode == 0

"""Python, packages, GPUs, CPUs and memory of this machine or its container."""

from __future__ import annotations

import os
import platform
import shutil
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

from jobs.doctor.checks import CheckResult, note, ok, problem
from jobs.memory import available_memory
from jobs.units import human_bytes
from pipeline.resources.cgroups import CGROUPS, num_cpus

PACKAGE = "tango-video"
SHARED_MEMORY = Path("/dev/shm")

# A driver, one worker per stage and Ray itself, with the embedded model.
_LITTLE_MEMORY = 4 * 2**30
# Ray's object store: its share of the free memory, the size up to which Ray moves it to a disk
# without a warning, and its largest size.
_STORE_SHARE, _STORE_ON_DISK, _STORE_MAX = 0.3, 10**10, 200 * 10**9
_MAX_LISTED = 3
_NEEDED_EXTRAS = ("models", "pipeline", "jobs")


def python_version(package: str = PACKAGE) -> CheckResult:
    """Compare the Python version with the range that the package supports."""
    from packaging.specifiers import SpecifierSet

    found = platform.python_version()
    wanted = metadata.metadata(package)["Requires-Python"]
    if not SpecifierSet(wanted).contains(found, prereleases=True):
        return problem(f"{found} is not {wanted}; install {package} into another Python")
    return ok(f"{found}, {platform.system()} {platform.machine()}")


def packages(package: str = PACKAGE) -> CheckResult:
    """Compare installed versions with the ranges that the package supports.

    Jobs need the extras `models`, `pipeline` and `jobs`. Others are optional: of them only what is
    installed is compared.
    """
    wrong, num_found = [], 0
    for text in metadata.requires(package) or ():
        wanted = Requirement(text)
        needed = _is_wanted(wanted, "", *_NEEDED_EXTRAS)
        if not needed and not _is_wanted(wanted, "torchcodec"):
            continue
        try:
            found = metadata.version(wanted.name)
        except metadata.PackageNotFoundError:
            if needed:
                wrong.append(f"{wanted.name} is missing (wanted: {wanted.specifier})")
            continue
        num_found += 1
        if not wanted.specifier.contains(found, prereleases=True):
            wrong.append(f"{wanted.name} {found} is not {wanted.specifier}")
    if not wrong:
        return ok(f"{package} {metadata.version(package)} and {num_found} others in their ranges")
    more = f" and {len(wrong) - _MAX_LISTED} more" if len(wrong) > _MAX_LISTED else ""
    return problem(
        f"{'; '.join(wrong[:_MAX_LISTED])}{more}; reinstall with `pip install --upgrade "
        f"'{package}[all]'`, or `make setup` in a checkout"
    )


def _is_wanted(wanted: Requirement, *extras: str) -> bool:
    """Whether one of the extras brings this package on this platform; "" is what all bring."""
    return wanted.marker is None or any(wanted.marker.evaluate({"extra": it}) for it in extras)


def accelerators() -> CheckResult:
    """List the GPUs that torch can use, and check a product on each of them."""
    import torch

    build = f"torch {torch.__version__}"
    if not torch.cuda.is_available():
        if shutil.which("nvidia-smi") is None:
            return ok(f"{build}; no GPU: models run on the CPU")
        reason = "the driver does not answer" if torch.version.cuda else "this build has no CUDA"
        return note(
            f"{build}: there is an NVIDIA driver but torch sees no GPU ({reason}); compare "
            "`nvidia-smi` with the builds on pytorch.org"
        )
    devices = []
    for index in range(torch.cuda.device_count()):
        values = torch.ones(64, 64, device=f"cuda:{index}")
        if float((values @ values).sum()) != 64.0**3:
            return problem(
                f"cuda:{index} computes a wrong product; remove it from CUDA_VISIBLE_DEVICES"
            )
        free, total = torch.cuda.mem_get_info(index)
        name = torch.cuda.get_device_name(index)
        devices.append(f"{name} ({human_bytes(free)} of {human_bytes(total)} free)")
    half = "bfloat16" if torch.cuda.is_bf16_supported() else "no bfloat16: set model.dtype"
    return ok(f"{build}; {len(devices)} GPU(s): {', '.join(devices)}; {half}")


def cpus(cgroups: Path = CGROUPS) -> CheckResult:
    """Compare the CPUs of the machine with those that this process may use."""
    total, ours = os.cpu_count() or 1, num_cpus(cgroups)
    if ours < total:
        return ok(f"{ours} of the machine's {total}: the limit of this container or process")
    return ok(f"{total}")


def memory() -> CheckResult:
    """Report the free memory of the machine or of its container."""
    total, available = available_memory()
    text = f"{human_bytes(available)} of {human_bytes(total)} free"
    if available < _LITTLE_MEMORY:
        return note(f"{text}: little for Ray with a worker per stage; `--set executor=local`")
    return ok(text)


def shared_memory(directory: Path = SHARED_MEMORY) -> CheckResult:
    """Compare the free space of /dev/shm with the size of Ray's object store."""
    if not directory.is_dir():
        return ok(f"there is no {directory}: Ray keeps its objects in files")
    free = shutil.disk_usage(directory).free
    wanted = object_store(free, available_memory()[1])
    text = f"{directory} has {human_bytes(free)} free, Ray takes up to {human_bytes(wanted)}"
    if free < wanted:
        return note(
            f"{text}: it will keep objects on disk, which is slow; give the container "
            f"--shm-size={wanted * 1.1 / 1e9:.0f}g"
        )
    return ok(text)


def object_store(shared: int, available: int) -> int:
    """Bytes that Ray reserves for its object store by default.

    Args:
        shared: Bytes free in /dev/shm.
        available: Bytes of free memory.
    """
    largest = min(_STORE_MAX, max(_STORE_ON_DISK, int(0.95 * shared)))
    return min(int(_STORE_SHARE * available), largest)

"""Time and memory of the halves of a published geometry: load, encode, compress, answer.

    python tests/perf/random_checkpoint.py llava-onevision-0.5b /data/ov05
    python tests/perf/bench_real_geometry.py llava-onevision-0.5b /data/ov05 --frames 32

Each half runs in a process of its own, as in a job. Frames are noise and weights are random:
neither time nor memory depends on them. `--cold` drops the checkpoint from the page cache first.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
HALVES = ("vision", "language")


def main() -> int:
    """Run the halves and print a table of their phases."""
    given = _arguments()
    rows: list[dict[str, Any]] = []
    for half in given.halves:
        if given.cold:
            drop_from_page_cache(given.directory)
        command = [sys.executable, __file__, *sys.argv[1:], "--child", half]
        environment = {**os.environ, "OMP_NUM_THREADS": str(given.threads)}
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=False)
        if done.returncode:
            return done.returncode
        rows += json.loads(done.stdout.decode().splitlines()[-1])
        print(_table(rows), flush=True)
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1) + "\n")
    return 0


def _arguments() -> argparse.Namespace:
    """The command line."""
    from tango_core.models.random_weights import GEOMETRIES

    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("geometry", choices=sorted(GEOMETRIES))
    parser.add_argument("directory", type=Path)
    parser.add_argument("--halves", nargs="+", choices=HALVES, default=list(HALVES))
    parser.add_argument("--frames", type=int, default=32)
    parser.add_argument("--retention", type=float, nargs="+", default=[0.1])
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--encode-batch", default="auto")
    parser.add_argument("--new-tokens", type=int, default=2)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--child", choices=HALVES, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        print(json.dumps(_run(given)))
        sys.exit(0)
    return given


def drop_from_page_cache(directory: Path) -> None:
    """Make the next reader of the weights wait for the disk."""
    os.sync()
    for file in directory.glob("*.safetensors"):
        handle = os.open(file, os.O_RDONLY)
        try:
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(handle)


def _run(given: argparse.Namespace) -> list[dict[str, Any]]:
    """Phases of one half, in this process."""
    import torch
    from process_memory import Recorder

    from tango_core.models import describe_model
    from tango_core.models.random_weights import GEOMETRIES

    torch.set_num_threads(given.threads)
    name = GEOMETRIES[given.geometry].model
    options = {} if given.encode_batch == "auto" else {"encode_batch": int(given.encode_batch)}
    started = time.perf_counter()
    spec = describe_model(
        name, str(given.directory), num_frames=given.frames, dtype=given.dtype, **options
    )
    described = time.perf_counter() - started
    recorder = Recorder()
    weights = {"vision": _vision, "language": _language}[given.child](given, spec, recorder)
    load = os.getloadavg()[0]
    rows = [
        {"half": given.child, "dtype": spec.dtype, "weights": weights, "load": load, **asdict(one)}
        for one in recorder.phases
    ]
    print(f"described in {described:.2f} s", file=sys.stderr)
    return rows


def _vision(given, spec, recorder) -> int:
    """Load the tower, encode a clip, compress it."""
    import numpy as np

    from tango_core import build_method, load_encoder
    from tango_core.types import VideoFrames

    with recorder.phase("imports"):
        import transformers.models.internvl.modeling_internvl
        import transformers.models.llava_onevision.modeling_llava_onevision
        import transformers.models.qwen2_5_vl.modeling_qwen2_5_vl  # noqa: F401
    with recorder.phase("load"):
        encoder = load_encoder(spec)
    size = spec.frames.size or (448, 448)
    pixels = np.random.default_rng(0).integers(0, 256, (given.frames, *size, 3), dtype=np.uint8)
    frames = VideoFrames(pixels, np.arange(given.frames, dtype=np.float64))
    method = build_method("tango", retention=given.retention[0], score="attention")
    with recorder.phase(f"encode {given.frames} frames"):
        features = encoder.encode(frames, method.compressor.needs)
    with recorder.phase(f"compress to {given.retention[0]:.0%}"):
        method.compressor.compress(features)
    module = encoder.model if hasattr(encoder, "model") else encoder.tower
    return sum(value.numel() * value.element_size() for value in module.parameters())


def _language(given, spec, recorder) -> int:
    """Load the language half and answer one prompt about a clip of random tokens."""
    import torch

    from tango_core import load_language_model
    from tango_core.types import CompressedVideo, Prompt

    with recorder.phase("imports"):
        import transformers.models.qwen2.modeling_qwen2
        import transformers.models.qwen2_5_vl.modeling_qwen2_5_vl
        import transformers.models.qwen3.modeling_qwen3  # noqa: F401
    with recorder.phase("load"):
        model = load_language_model(spec)
    grid = spec.grid or (16, 16)
    num_positions = given.frames if spec.grid else given.frames // 2
    total = num_positions * grid[0] * grid[1]
    question = Prompt("", "Question: What does the person in the video do?\nA. The\nB. A\nAnswer: ")
    for retention in given.retention:
        kept = round(total * retention)
        generator = torch.Generator().manual_seed(0)
        video = CompressedVideo(
            torch.randn(kept, spec.llm.hidden_size, generator=generator).to(
                getattr(torch, spec.dtype)
            ),
            torch.randperm(total, generator=generator)[:kept].sort().values,
            (num_positions, *grid),
            torch.arange(num_positions, dtype=torch.float64),
        )
        # The first prompt reads weights that loading only mapped, so it is asked twice.
        for turn in ("first", "again") if retention == given.retention[0] else ("then",):
            with recorder.phase(f"answer at {retention:.0%}, {turn}") as phase:
                (reply,) = model.answer(video, [question], max_new_tokens=given.new_tokens)
            phase.name += (
                f" ({reply.prompt_tokens} tokens: prefill {reply.prefill_ms / 1e3:.2f} s, "
                f"{reply.new_tokens - 1} more {reply.decode_ms / 1e3:.2f} s)"
            )
    held = {id(value): value for value in model.engine.model.parameters()}
    return sum(value.numel() * value.element_size() for value in held.values())


def _table(rows: list[dict[str, Any]]) -> str:
    """Markdown."""
    lines = [
        "| half | phase | s | CPU s | peak GB | own GB | growth / weights | read GB | load |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        peak, own, read, weights = (row[k] / 1e9 for k in ("peak", "peak_own", "read", "weights"))
        grown = (row["peak"] - row["before"]) / row["weights"]
        lines.append(
            f"| {row['half']}, {row['dtype']}, {weights:.2f} GB | {row['name']} "
            f"| {row['seconds']:.1f} | {row['cpu_seconds']:.1f} | {peak:.2f} | {own:.2f} "
            f"| {grown:.2f} | {read:.2f} | {row['load']:.1f} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())

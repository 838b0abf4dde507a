"""Time to decode 32 frames of long and short H.264 files, beside PyAV with a seek per frame.

    python tests/perf/decoding.py FOLDER [--other CHECKOUT] [--repeats 3]

Writes the files to FOLDER unless they are there: an hour without B-frames, an hour and five minutes
with B-frames, each as mp4 and mkv; the hour with B-frames has a variable frame rate. Prints a table
of processor seconds, the least of some repeats: of this version with and without stored indices, of
PyAV, and of another checkout, in turn.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

MEASURE = """
import inspect, json, sys, time
import av, numpy as np
from tango_core.video import FrameSpec, decode_frames

def seconds(work):
    started = time.process_time()
    work()
    return time.process_time() - started

def seek(path):
    with av.open(path) as container:
        stream = container.streams.video[0]
        stream.thread_count = 1
        length = container.duration / 1e6 / stream.time_base
        for tick in np.linspace(0, float(length) * 0.999, 32).astype(int):
            container.seek(int(tick), stream=stream)
            for frame in container.decode(stream):
                if frame.pts >= tick - 1:
                    frame.to_ndarray(format="rgb24")
                    break

path, folder = sys.argv[1:]
spec = FrameSpec(32)
decode_frames(path, spec, (0.0, 1.0))  # imports
found = {"decode": seconds(lambda: decode_frames(path, spec)), "seek": seconds(lambda: seek(path))}
if len(inspect.signature(decode_frames).parameters) > 3:
    decode_frames(path, spec, None, folder)
    found["again"] = seconds(lambda: decode_frames(path, spec, None, folder))
print(json.dumps(found))
"""


def main() -> None:
    """Write the files and measure."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--other", type=Path, help="checkout to compare with")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    files = [write(options.folder, *one) for one in (("p", 3600), ("b", 3600), ("b", 300))]
    print("| file | other | this | ratio | again | PyAV's seek | ratio of this to it |")
    print("|---|---|---|---|---|---|---|")
    for path in [path for pair in files for path in pair]:
        best: dict[str, float] = {}
        for _ in range(options.repeats):
            for which, checkout in (("this", None), ("other", options.other)):
                if which == "other" and checkout is None:
                    continue
                for name, value in measured(path, options.folder, checkout).items():
                    key = f"{which} {name}"
                    best[key] = min(value, best.get(key, value))
        this, other = best["this decode"], best.get("other decode", float("nan"))
        seek = best["this seek"]
        print(
            f"| {path.name} | {other:.2f} | {this:.2f} | {this / other:.2f} | "
            f"{best['this again']:.2f} | {seek:.2f} | {this / seek:.2f} |"
        )


def measured(path: Path, folder: Path, checkout: Path | None) -> dict[str, float]:
    """Processor seconds in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": str(checkout or Path(__file__).parents[2])}
    command = [sys.executable, "-c", MEASURE, str(path), str(folder / "indices")]
    done = subprocess.run(
        command, env=environment, cwd=folder, capture_output=True, text=True, check=True
    )
    return dict(json.loads(done.stdout))


def write(folder: Path, kind: str, seconds: int) -> list[Path]:
    """Write one video as mp4 and mkv; of kind `b` with B-frames, an hour of it at varying rate."""
    import av
    import numpy as np

    paths = [folder / f"{kind}_{seconds}.{end}" for end in ("mp4", "mkv")]
    if all(path.exists() for path in paths):
        return paths
    blocks = np.random.default_rng(0).integers(0, 255, (45, 80, 3), dtype=np.uint8)
    picture = blocks.repeat(8, 0).repeat(8, 1)
    shown = [
        av.VideoFrame.from_ndarray(np.roll(picture, 3 * n, 1), format="rgb24") for n in range(100)
    ]
    frames = [frame.reformat(format="yuv420p") for frame in shown]
    with av.open(str(paths[0]), "w") as container:
        settings = {"preset": "ultrafast" if kind == "p" else "veryfast", "crf": "32"}
        stream = container.add_stream("libx264", rate=25, options=settings)
        stream.width, stream.height, stream.pix_fmt = 640, 360, "yuv420p"
        for at in range(seconds * 25):
            if kind == "b" and seconds > 1000 and at % 7 == 3:
                continue
            frame = frames[at // 25 % 100]
            frame.pts, frame.time_base = at, Fraction(1, 25)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    with av.open(str(paths[0])) as source, av.open(str(paths[1]), "w") as copy:
        own = source.streams.video[0]
        new = copy.add_stream_from_template(own)
        for packet in source.demux(own):
            if packet.dts is not None:
                packet.stream = new
                copy.mux(packet)
    return paths


if __name__ == "__main__":
    main()

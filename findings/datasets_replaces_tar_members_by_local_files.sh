#!/usr/bin/env bash
# datasets reads a WebDataset tar differently in a folder with files of the same names: the local files replace the members.
#
# Guess:    `load_dataset("webdataset", data_files=tar)` gives what the tar holds; the current folder does not matter, and the
#           dataset that it caches holds the bytes.
# Happens:  a member 0001.png or 0001.mp4 is encoded as {"path": "0001.png", "bytes": ...}, and Image and Video drop the bytes
#           if a file of that relative name exists where the process runs ("already available locally"). Pictures and videos of
#           another version or another dataset with the same numbers are read in place of the members, without a warning, and
#           stay so in the cache: from another folder the row then has neither bytes nor a file. Dataset.from_list and
#           from_generator do the same with rows that have both; map keeps the bytes.
# Versions: datasets 5.2.0, av 18.1.0, numpy 2.4.6, pillow 12.0.0; Python 3.11
# Source:   datasets/packaged_modules/webdataset/webdataset.py, _generate_examples ("path": key + "." + field);
#           datasets/features/image.py and video.py, encode_example: `if path is not None and os.path.isfile(path)`
# Seen (the tar's picture is red; a blue picture and a shorter video of the same names lie in the second folder):
#   in an empty folder: picture (255, 0, 0), video of the tar True
#   in a folder with files of the same names: picture (0, 0, 255), video of the tar False, bytes stored None
#   the second dataset, read from elsewhere: FileNotFoundError
#   map in the second folder keeps the bytes: True
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv env
env/bin/pip install --quiet datasets==5.2.0 av==18.1.0 numpy==2.4.6 pillow==12.0.0
cat > show.py <<'PY'
import os
import tarfile

os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_DISABLE_PROGRESS_BARS="1")
import av
import numpy as np
from datasets import Dataset, Features, Video, load_dataset
from PIL import Image as Picture

root = os.getcwd()


def make(folder, color, frames):
    os.makedirs(folder)
    Picture.new("RGB", (8, 8), color).save(f"{folder}/0001.png")
    with av.open(f"{folder}/0001.mp4", "w") as container:
        stream = container.add_stream("libx264", rate=10)
        stream.width = stream.height = 64
        for _ in range(frames):
            picture = np.full((64, 64, 3), color, np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode())


make("packed", (255, 0, 0), 20)
make("local", (0, 0, 255), 5)
os.makedirs("empty")
with tarfile.open("shard.tar", "w") as tar:
    for name in ("0001.png", "0001.mp4"):
        tar.add(f"packed/{name}", arcname=name)
with open("packed/0001.mp4", "rb") as file:
    video = file.read()


def load(folder):
    os.chdir(f"{root}/{folder}")
    data = load_dataset("webdataset", data_files=f"{root}/shard.tar", split="train", cache_dir=f"{root}/cache-{folder}")
    return data.cast_column("mp4", Video(decode=False))


row = load("empty")[0]
print(f"in an empty folder: picture {row['png'].getpixel((0, 0))}, video of the tar {row['mp4']['bytes'] == video}")
data = load("local")
row = data[0]
print(
    f"in a folder with files of the same names: picture {row['png'].getpixel((0, 0))}, "
    f"video of the tar {row['mp4']['bytes'] == video}, bytes stored {row['mp4']['bytes']}"
)
os.chdir(f"{root}/empty")
try:
    data[0]["png"].getpixel((0, 0))
    print("the second dataset, read from elsewhere: the picture")
except FileNotFoundError as error:
    print("the second dataset, read from elsewhere:", type(error).__name__)
os.chdir(f"{root}/local")
features = Features({"mp4": Video(decode=False)})
mapped = Dataset.from_dict({"n": [1]}).map(
    lambda _: {"mp4": {"path": "0001.mp4", "bytes": video}}, features=features, remove_columns="n"
)
print("map in the second folder keeps the bytes:", mapped[0]["mp4"]["bytes"] == video)
PY
env/bin/python -W ignore show.py 2> errors.txt > seen.txt || { cat errors.txt; exit 1; }
cat seen.txt
cat > expected.txt <<'TXT'
in an empty folder: picture (255, 0, 0), video of the tar True
in a folder with files of the same names: picture (0, 0, 255), video of the tar False, bytes stored None
the second dataset, read from elsewhere: FileNotFoundError
map in the second folder keeps the bytes: True
TXT
diff expected.txt seen.txt > /dev/null || { echo "datasets behaves in another way now"; exit 1; }

"""The 20 tasks of MVBench: where each keeps its videos, in both public layouts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Task:
    """One task of MVBench.

    Attributes:
        name: As the paper and VLMEvalKit write it.
        source: Folder of its videos below `video/` on the branch `main`.
        cut: Folder of its videos on the branch `video`, where clips are cut already.
        bounded: Whether its questions ask about a part of a file of the branch `main`.
        frames: Whether a video of the branch `main` is a folder of images, 3 per second.
    """

    name: str
    source: str
    cut: str
    bounded: bool = False
    frames: bool = False

    @property
    def stem(self) -> str:
        """Name of its JSON file."""
        return self.name.lower().replace(" ", "_").replace("-", "_")


_CHARADES = ("star/Charades_v1_480", "star/Charades_segment")
_CLEVRER = ("clevrer/video_validation", "clevrer/video_validation")
_PERCEPTION = ("perception/videos", "perception/videos")
_MOMENTS = ("Moments_in_Time_Raw/videos", "Moments_in_Time_Raw/videos")

ALL_TASKS = (
    Task("Action Sequence", *_CHARADES, bounded=True),
    Task("Action Prediction", *_CHARADES, bounded=True),
    Task("Action Antonym", "ssv2_video", "ssv2_video_mp4"),
    Task("Fine-grained Action", *_MOMENTS),
    Task("Unexpected Action", "FunQA_test/test", "FunQA_test/test"),
    Task("Object Existence", *_CLEVRER),
    Task("Object Interaction", *_CHARADES, bounded=True),
    Task("Object Shuffle", *_PERCEPTION),
    Task("Moving Direction", *_CLEVRER),
    Task("Action Localization", "sta/sta_video", "sta/sta_video_segment", bounded=True),
    Task("Scene Transition", "scene_qa/video", "scene_qa/video"),
    Task("Action Count", *_PERCEPTION),
    Task("Moving Count", *_CLEVRER),
    Task("Moving Attribute", *_CLEVRER),
    Task("State Change", *_PERCEPTION),
    Task("Fine-grained Pose", "nturgbd", "nturgbd_convert"),
    Task("Character Order", *_PERCEPTION),
    Task("Egocentric Navigation", "vlnqa", "vlnqa"),
    Task(
        "Episodic Reasoning",
        "tvqa/frames_fps3_hq",
        "tvqa/video_fps3_hq_segment",
        bounded=True,
        frames=True,
    ),
    Task("Counterfactual Inference", *_CLEVRER),
)

# By name and by the stem of the JSON file: releases write either.
TASK_OF = {key: task for task in ALL_TASKS for key in (task.name, task.stem)}

WITHHELD_TASK = "Fine-grained Pose"
WITHHELD = (
    "NTU RGB+D clips are not part of the public release for licence reasons; "
    "request them from https://rose1.ntu.edu.sg/dataset/actionRecognition"
)

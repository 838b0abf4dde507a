"""What works with numpy and torch alone: every compressor, on features made elsewhere."""

from __future__ import annotations

import torch

from tango_core import METHODS, VisualFeatures, build_method
from tango_core.compressors import method_class
from tango_core.compressors.options import option_names

FRAMES, HEIGHT, WIDTH, DIM = 8, 6, 6, 32


def main() -> None:
    """Prune made-up features with every method before the language model and print what is kept."""
    generator = torch.Generator().manual_seed(0)
    shape = FRAMES, HEIGHT * WIDTH
    scores = torch.rand(2, *shape, generator=generator)
    tokens = torch.randn(*shape, DIM, generator=generator)
    features = VisualFeatures(
        tokens=tokens,
        grid=(HEIGHT, WIDTH),
        timestamps=torch.arange(FRAMES, dtype=torch.float64),
        saliency=scores[0],
        attention=scores[1],
        keys=torch.randn(*shape, DIM, generator=generator),
        frame_embeddings=tokens.mean(dim=1),
    )
    # The others also read the question, or signals of inner blocks.
    for name in sorted(METHODS.keys() - {"aot", "cdpruner", "earlytom", "rediprune", "semvid"}):
        # Controls such as `full` have no retention.
        has_retention = "retention" in option_names(method_class(name))
        options = {"retention": 0.5} if has_retention else {}
        video = build_method(name, **options).compressor.compress(features)
        print(f"{name}: {video.num_kept} of {video.num_total} tokens")


if __name__ == "__main__":
    main()

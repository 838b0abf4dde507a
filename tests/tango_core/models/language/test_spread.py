"""A language model whose layers are on several devices says what it says on one."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from attentive_layers import GRID, PRUNERS, WIDTH, attentive_qwen2, changing_frames, pruner_of
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from tango_core.models import load_language_model
from tango_core.models.language.engine import NativeEngine
from tango_core.models.language.prompt import LaidOutPrompt, TextTokens, VisualTokens
from tango_core.models.placement import resolve_devices, spread_layers
from tango_core.types import Prompt

CPU = torch.device("cpu")
_LOOKUPS = ("__getitem__", "__setitem__", "index_put_", "index_put")


def device_of(tensor: Tensor) -> torch.device:
    """The simulated device of a tensor."""
    return getattr(tensor, "_fake_device", CPU)


def put_on(tensor: Tensor, device: torch.device | str) -> Tensor:
    """Set the simulated device of a tensor."""
    tensor._fake_device = torch.device(device)
    return tensor


class FakeDevices(TorchFunctionMode):
    """Several simulated CUDA devices: tensors on the host that record their device.

    An operator with tensors of different devices raises, unless CUDA takes it: scalars of the host,
    and lookups by an index that the host holds. `put_on` sets the device of tensors that were
    created outside of the block.

    Attributes:
        moves: (from, to) of every copy between devices.
    """

    def __init__(self) -> None:
        super().__init__()
        self.moves: list[tuple[str, str]] = []
        self._make_parameter = torch.nn.Parameter.__new__

    def __enter__(self) -> FakeDevices:
        """Also patch `Parameter`, which is created without an operator."""

        def make(cls, data=None, requires_grad=True):
            made = self._make_parameter(cls, data, requires_grad)
            return made if data is None else put_on(made, device_of(data))

        torch.nn.Parameter.__new__ = staticmethod(make)
        return super().__enter__()

    def __exit__(self, *error) -> None:
        super().__exit__(*error)
        torch.nn.Parameter.__new__ = staticmethod(self._make_parameter)

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        if name == "__get__" and getattr(func, "__self__", None) is Tensor.device:
            return device_of(args[0])
        if name == "__get__" and getattr(func, "__self__", None) is Tensor.is_cuda:
            return device_of(args[0]).type == "cuda"
        if func is Tensor.pin_memory:
            return args[0]
        if func in (Tensor.to, Tensor.cpu):
            return self._moved(func, args, kwargs)
        asked = kwargs.pop("device", None)
        place = torch.device(asked) if asked is not None else self._judged(name, args, kwargs)
        result = func(*args, **kwargs)
        for leaf in pytree.tree_leaves(result):
            if isinstance(leaf, Tensor) and place != CPU:
                put_on(leaf, place)
        return result

    def _moved(self, func: Any, args: Any, kwargs: Any) -> Tensor:
        """`.to` and `.cpu`: the same tensor if it is there already, else a copy."""
        tensor, *rest = args
        target = CPU if func is Tensor.cpu else kwargs.pop("device", None)
        if rest and isinstance(rest[0], (str, torch.device)):
            target, rest = rest[0], rest[1:]
        elif rest and isinstance(rest[0], Tensor):
            target, rest = device_of(rest[0]), [rest[0].dtype, *rest[1:]]
        before = device_of(tensor)
        place = before if target is None else torch.device(target)
        moved = func(tensor, *rest, **kwargs) if rest or kwargs else tensor
        if place != before:
            self.moves.append((str(before), str(place)))
            moved = moved.clone() if moved is tensor else moved
        return put_on(moved, place)

    def _judged(self, name: str, args: Any, kwargs: Any) -> torch.device:
        """The device of an operator's tensors.

        Raises:
            RuntimeError: If they are on several.
        """
        tensors = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        places = {device_of(one) for one in tensors if one.ndim}
        scalars = {device_of(one) for one in tensors if not one.ndim} - {CPU}
        if name in _LOOKUPS and tensors:
            places -= {CPU} if device_of(tensors[0]) != CPU else set()
        places |= scalars
        if len(places) > 1:
            raise RuntimeError(
                "Expected all tensors to be on the same device, but found at least two devices, "
                f"{' and '.join(sorted(map(str, places)))}, in {name}"
            )
        return next(iter(places), CPU)


GPUS = tuple(torch.device("cuda", index) for index in range(3))


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch):
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device=None: None)


@pytest.fixture(scope="module")
def half():
    """Qwen2 layers whose attention differs from token to token."""
    model = attentive_qwen2()
    return torch.nn.ModuleDict({"language_model": model.model, "lm_head": model.lm_head})


@pytest.fixture(scope="module")
def prompts():
    """Two questions about one slowly changing clip."""
    count = math.prod(GRID)
    clip = VisualTokens(changing_frames(), torch.arange(count), GRID)
    return [
        LaidOutPrompt(
            spans=(TextTokens((1, 2, 3, 4)), clip, TextTokens(question)),
            positions=torch.arange(4 + count + len(question)),
        )
        for question in ((5, 6, 7), (8, 9, 10, 11, 12))
    ]


def said(half, prompts, **options):
    engine = NativeEngine(half, lambda ids: " ".join(map(str, ids)), frozenset())
    return [answer.text for answer in engine.answer(prompts, max_new_tokens=5, **options)]


def spread_out(half, devices):
    """Put the tensors of the model on devices, until the test is over."""
    sizes = {name: value.nbytes for name, value in half.named_parameters()}
    places = spread_layers(sizes, devices)
    for name, value in half.named_parameters():
        put_on(value, places[name])
    for _, value in half.named_buffers():
        put_on(value, devices[0])
    return {int(n.split(".")[2]): place for n, place in places.items() if ".layers." in n}


def back_on_the_host(half):
    for value in (*half.parameters(), *half.buffers()):
        put_on(value, "cpu")


@pytest.fixture
def on_gpus(half):
    """The same model, its layers on three devices."""
    places = spread_out(half, GPUS)
    assert len(set(places.values())) == 3
    yield half
    back_on_the_host(half)


@pytest.mark.parametrize("share_prefix", [True, False])
def test_replies_are_those_of_one_device(half, prompts, on_gpus, share_prefix):
    with FakeDevices() as devices:
        spread = said(on_gpus, prompts, share_prefix=share_prefix)
    assert ("cuda:0", "cuda:1") in devices.moves
    assert ("cuda:1", "cuda:2") in devices.moves
    back_on_the_host(half)
    assert spread == said(half, prompts, share_prefix=share_prefix)


@pytest.mark.parametrize("name", PRUNERS)
def test_every_pruner_works_across_devices(half, prompts, on_gpus, name):
    with FakeDevices():
        spread = said(on_gpus, prompts, pruner=pruner_of(name))
    back_on_the_host(half)
    assert spread == said(half, prompts, pruner=pruner_of(name))


@pytest.mark.parametrize("name", [None, "fastv", "framefusion"])
def test_rows_that_are_added_after_layers_go_to_their_devices(half, prompts, on_gpus, name):
    """Six of eight layers add some, so all three devices do; a pruner drops tokens in between."""
    generator = torch.Generator().manual_seed(5)
    rows = torch.randn(math.prod(GRID), 6, WIDTH, generator=generator)
    deep = [
        replace(one, spans=(one.spans[0], replace(one.spans[1], companions=rows), one.spans[2]))
        for one in prompts
    ]
    pruner = None if name is None else pruner_of(name)
    with FakeDevices():
        spread = said(on_gpus, deep, pruner=pruner)
    back_on_the_host(half)
    assert spread == said(half, deep, pruner=pruner) != said(half, prompts, pruner=pruner)


def test_a_checkpoint_is_loaded_layer_by_layer_onto_its_devices(checkpoint, video, monkeypatch):
    expected = load_language_model("llava-onevision-7b", str(checkpoint), dtype="float32")
    question = [Prompt("", "w1 w2 w3")]
    alone = expected.answer(video, question, max_new_tokens=4)[0].text
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with FakeDevices():
        spec = expected.spec
        spread = load_language_model(spec, device="cuda:0,cuda:1")
        loop = spread.engine.layer_loop
        assert loop.devices == GPUS[:2]
        places = [device_of(layer.mlp.up_proj.weight) for layer in loop.layers]
        assert places == sorted(places, key=str)
        assert set(places) == set(GPUS[:2])
        assert spread.answer(video, question, max_new_tokens=4)[0].text == alone


def test_the_fullest_device_holds_the_least():
    def split(loads, devices, extra=()):
        sizes = {f"model.layers.{index}.w": load for index, load in enumerate(loads)}
        places = spread_layers({**sizes, **dict(extra)}, GPUS[:devices])
        return [places[name].index for name in sizes], places

    assert split([1] * 6, 2)[0] == [0, 0, 0, 1, 1, 1]
    assert split([4, 1, 1, 1, 1], 2)[0] == [0, 1, 1, 1, 1]
    assert split([1, 1, 1, 1, 9], 3)[0][-1] == 2
    # The embedding is before the layers, norm and output projection are after them.
    places = split([1] * 6, 2, {"model.embed_tokens.weight": 4, "image_newline": 0})
    assert places[0] == [0, 1, 1, 1, 1, 1]
    assert places[1]["model.embed_tokens.weight"] == places[1]["image_newline"] == GPUS[0]
    places = split([1] * 6, 2, {"lm_head.weight": 4, "model.norm.weight": 0})
    assert places[0] == [0, 0, 0, 0, 0, 1]
    assert places[1]["lm_head.weight"] == places[1]["model.norm.weight"] == GPUS[1]


def test_more_gpus_than_there_are_are_refused(monkeypatch):
    with pytest.raises(ValueError, match=r"num_gpus is 3, but the language model has 2 layers"):
        spread_layers({"layers.0.w": 1, "layers.1.w": 1}, GPUS)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert resolve_devices("cuda") == (torch.device("cuda"),)
    with pytest.raises(ValueError, match=r"num_gpus is 2, but this process sees 1 GPU\(s\)"):
        resolve_devices("cuda:0,cuda:1")

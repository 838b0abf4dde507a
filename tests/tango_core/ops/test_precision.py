"""What chooses tokens multiplies in full precision, and leaves the user's settings as they were."""

import threading
from contextlib import suppress

import pytest
import torch
from device_rules import allows_tf32

from tango_core.compressors import build_method
from tango_core.compressors.contract.inputs import SyntheticPrompt, make_clip, run_layers
from tango_core.ops import precision
from tango_core.ops.precision import float32_products, full_precision


@pytest.fixture(autouse=True)
def settings():
    """Whatever a test sets is as before after it."""
    before = precision._settings()
    yield
    precision._set(before)


def _old(monkeypatch):
    monkeypatch.setattr(precision, "_is_new", lambda: False)
    torch.set_float32_matmul_precision("high")


def _new(monkeypatch):
    torch.backends.cuda.matmul.fp32_precision = "tf32"


def _flag(monkeypatch):
    torch.backends.cuda.matmul.allow_tf32 = True


def _process_wide(monkeypatch):
    torch.set_float32_matmul_precision("high")


WAYS = [_old, _new, _flag, _process_wide]


@pytest.mark.parametrize("allow", WAYS)
class TestTheUsersSetting:
    def test_is_off_inside_and_back_after_an_error(self, monkeypatch, allow):
        allow(monkeypatch)
        assert allows_tf32()
        with suppress(KeyError), full_precision():
            assert not allows_tf32()
            raise KeyError
        assert allows_tf32()

    def test_is_off_until_the_last_one_leaves(self, monkeypatch, allow):
        allow(monkeypatch)
        entered, leave = threading.Event(), threading.Event()

        def other():
            with full_precision():
                entered.set()
                leave.wait(60)

        thread = threading.Thread(target=other)
        with full_precision():
            thread.start()
            assert entered.wait(60)
        inside = allows_tf32()
        leave.set()
        thread.join(60)
        assert (inside, allows_tf32()) == (False, True)

    def test_is_what_is_recorded(self, monkeypatch, allow):
        allow(monkeypatch)
        assert float32_products()["matmul"] == "tf32"
        with full_precision():  # of another thread: the models' setting is the user's
            assert float32_products()["matmul"] == "tf32"


def test_nothing_set_is_recorded_as_full_precision():
    assert float32_products()["matmul"] == "ieee"
    assert set(float32_products()) == {"matmul", "convolution"}


def test_the_flag_can_be_read_again_after_it():
    torch.backends.cuda.matmul.allow_tf32 = True
    with full_precision():
        pass
    assert torch.backends.cuda.matmul.allow_tf32
    assert torch.get_float32_matmul_precision() == "high"


@pytest.mark.parametrize("call", ["compress", "plan"])
def test_it_is_off_while_a_method_chooses(call, monkeypatch):
    torch.backends.cuda.matmul.allow_tf32 = True
    method, seen = build_method("divprune", retention=0.2).compressor, []
    choose = type(method)._plan
    monkeypatch.setattr(
        type(method), "_plan", lambda *args: seen.append(allows_tf32()) or choose(*args)
    )
    getattr(method, call)(make_clip())
    assert seen == [False]


def test_it_is_off_while_a_pruner_chooses(monkeypatch):
    torch.backends.cuda.matmul.allow_tf32 = True
    pruner, seen = build_method("fastv", retention=0.2).pruner, []
    choose = type(pruner).prune
    monkeypatch.setattr(
        type(pruner), "prune", lambda *args: seen.append(allows_tf32()) or choose(*args)
    )
    run_layers(pruner, 28, SyntheticPrompt())
    assert seen == [False]

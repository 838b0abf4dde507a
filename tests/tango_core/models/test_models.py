import pytest

from tango_core.models import describe_model, load_encoder, load_language_model


def test_loading_by_name_and_by_description_is_the_same(checkpoint):
    spec = describe_model("llava-onevision-7b", str(checkpoint), num_frames=4)
    for load in (load_encoder, load_language_model):
        assert load(spec).spec == load("llava-onevision-7b", str(checkpoint), num_frames=4).spec
        assert load(spec, device="cpu").spec.device == "cpu"


def test_cuda_without_a_gpu_is_refused(checkpoint, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(ValueError, match=r"model\.device is cuda, but this process sees no GPU"):
        load_encoder("llava-onevision-7b", str(checkpoint), device="cuda")


@pytest.mark.parametrize(
    ("device", "capability", "expected"),
    [
        ("cpu", (9, 0), "float32"),
        ("auto", None, "float32"),
        ("auto", (9, 0), "bfloat16"),
        ("auto", (7, 5), "bfloat16"),  # a cache's name follows from no host
        ("cuda", (7, 5), "bfloat16"),
        ("cuda", (8, 0), "bfloat16"),
        ("cuda", None, "bfloat16"),  # a driver without a GPU plans for workers with one
    ],
)
def test_the_precision_that_auto_means(checkpoint, monkeypatch, device, capability, expected):
    monkeypatch.setattr("torch.cuda.is_available", lambda: capability is not None)
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda device=None: capability)
    spec = describe_model("llava-onevision-7b", str(checkpoint), device=device)
    assert spec.dtype == expected
    assert describe_model("llava-onevision-7b", str(checkpoint), dtype="float16").dtype == "float16"


@pytest.mark.parametrize("load", [load_encoder, load_language_model])
def test_a_gpu_without_the_model_s_precision_is_refused(checkpoint, monkeypatch, load):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda device: (7, 5))
    monkeypatch.setattr("torch.cuda.get_device_name", lambda device: "Tesla T4")
    spec = describe_model("llava-onevision-7b", str(checkpoint), device="cuda")
    with pytest.raises(ValueError, match=r"model\.dtype is bfloat16") as error:
        load(spec)
    assert "cuda is a Tesla T4, which does not compute in it; set model.dtype to" in str(
        error.value
    )
    assert "\n" not in str(error.value)
    load(spec, device="cpu")
    load(spec, device="meta")
